"""Finance tasks: figures of firms that own one another, asked from a real SQLite file. Level L takes L + 1 queries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments.names import draw_names
from overland.environments.prompts_finance import HELD_OUT, TRAIN
from overland.environments.sql_world import METRICS, Fact, Firm, SqlWorld
from overland.environments.task import Step, Task
from overland.environments.taskset import Taskset


@dataclass(frozen=True)
class FinanceTask(Task):
    """The rows of the two tables."""

    firms: tuple[Firm, ...] = field(kw_only=True)
    facts: tuple[Fact, ...] = field(kw_only=True)

    def world(self) -> SqlWorld:
        return SqlWorld(self.firms, self.facts)


class Finance(Taskset):
    """Tool `sql`; see the module."""

    name = "finance"
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        0: ("value", "firm", "peak"),
        1: ("owner", "best", "owner_firm", "owner_peak"),
        2: ("owner_best", "owner_owner_firm"),
        3: ("owner_owner_best",),
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> FinanceTask:
        count = rng.randint(5, 8)
        names = draw_names(rng, split, 2 * count)
        firms, towns = names[:count], names[count:]
        owners = {firms[i]: firms[(i + rng.randint(1, count - 1)) % count] for i in range(count)}
        first = rng.randint(2012, 2022)
        years = range(first, first + 4)
        # All cells of a world differ: a figure from a wrong cell is never right by luck, and no best year is a tie.
        cells = iter(rng.sample(range(100, 1000), count * 4 * len(METRICS)))
        facts = {(firm, year): {metric: next(cells) for metric in METRICS} for firm in firms for year in years}

        path = [firms[0]]
        for _ in range(kind.count("owner")):
            if owners[path[-1]] in path:  # a chain visits new firms only
                owners[path[-1]] = rng.choice([firm for firm in firms if firm not in path])
            path.append(owners[path[-1]])
        if owners[path[-1]] in path:  # nor may an answer stand in the prompt
            owners[path[-1]] = rng.choice([firm for firm in firms if firm not in path])
        best, metric = rng.sample(METRICS, 2)
        column = rng.choice(("owner", "town"))
        year = rng.choice(years)
        last = path[-1]
        if kind.endswith(("best", "peak")):
            year = max(years, key=lambda y: facts[last, y][best])
        rows = tuple((firm, owners[firm], town) for firm, town in zip(firms, towns, strict=True))
        families = (TRAIN if split == "train" else HELD_OUT)[kind]
        prompt = rng.choice(families).format(s=path[0], y=year, m=metric, b=best, t=column)
        if kind.endswith("firm"):
            goal, answer = column, rows[firms.index(last)][1 if column == "owner" else 2]
        elif kind.endswith("peak"):
            goal, answer = "year", str(year)
        else:
            goal, answer = metric, str(facts[last, year][metric])
        steps = _oracle(kind, path, year, best, goal)
        table = tuple((firm, y, cell["sales"], cell["profit"], cell["debt"]) for (firm, y), cell in facts.items())
        return FinanceTask(
            self.name, kind, split, level, seed, prompt, answer, steps,
            closing=goal, firms=tuple(sorted(rows)), facts=table,
        )  # fmt: skip


def _step(plan: tuple[str, ...], query: str) -> Step:
    return Step(plan, {"query": query})


def _oracle(kind: str, path: list[str], year: int, best: str, goal: str) -> tuple[Step, ...]:
    """Owners first, then the best year, then what is asked for; `plan` keeps what is left."""
    last, peak = path[-1], kind.endswith("peak")
    when = () if kind.endswith("firm") else (f"best {best}",) if kind.endswith(("best", "peak")) else (f"year {year}",)
    found = [f"{'owner' if index else 'firm'} {firm}" for index, firm in enumerate(path)]
    steps = []
    for index, firm in enumerate(path[:-1]):
        left = ["owner"] * (len(path) - 1 - index)
        steps.append(_step((found[index], *left, *when, goal), f"select owner from firms where name='{firm}'"))
    if kind.endswith(("best", "peak")):
        query = f"select year from facts where firm='{last}' order by {best} desc limit 1"
        steps.append(_step((found[-1], *when, goal), query))
    if kind.endswith("firm"):
        steps.append(_step((found[-1], goal), f"select {goal} from firms where name='{last}'"))
    elif not peak:
        query = f"select {goal} from facts where firm='{last}' and year={year}"
        steps.append(_step((found[-1], f"year {year}", goal), query))
    return tuple(steps)
