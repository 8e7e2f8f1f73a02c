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

LINKS = ("owner", "partner")
COLUMNS = ("town", *LINKS)


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
        1: ("link_value", "link_firm", "link_peak", "best"),
        2: ("link_best", "link_link_value", "link_link_firm", "link_link_peak"),
        3: ("link_link_best",),
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> FinanceTask:
        count = rng.randint(6, 8)
        names = draw_names(rng, split, 2 * count)
        firms, towns = names[:count], names[count:]
        first = rng.randint(2012, 2022)
        years = range(first, first + 4)
        # All cells of a world differ: a figure from a wrong cell is never right by luck, and no best year is a tie.
        cells = iter(rng.sample(range(100, 1000), count * 4 * len(METRICS)))
        facts = {(firm, year): {metric: next(cells) for metric in METRICS} for firm in firms for year in years}
        links = {firm: {link: rng.choice([f for f in firms if f != firm]) for link in LINKS} for firm in firms}

        path, followed = [firms[0]], list[str]()
        column = rng.choice(COLUMNS)
        for _ in range(kind.count("link")):  # a chain visits new firms only, and never by the same link twice in a row
            barred = {*followed[-1:], column} if kind.endswith("firm") else set(followed[-1:])
            followed.append(rng.choice([link for link in LINKS if link not in barred] or list(LINKS)))
            links[path[-1]][followed[-1]] = rng.choice([firm for firm in firms if firm not in path])
            path.append(links[path[-1]][followed[-1]])
        last = path[-1]
        for link in LINKS:  # nor may an answer stand in the prompt
            if links[last][link] in path:
                links[last][link] = rng.choice([firm for firm in firms if firm not in path])

        best, metric = rng.sample(METRICS, 2)
        year = rng.choice(years)
        when: tuple[str, ...] = (str(year),)
        if kind.endswith(("best", "peak")):
            year, when = max(years, key=lambda y: facts[last, y][best]), (f"best{best}",)
        if kind.endswith("firm"):
            when, goal = (), column
            answer = towns[firms.index(last)] if column == "town" else links[last][column]
        else:
            goal, answer = ("year", str(year)) if kind.endswith("peak") else (metric, str(facts[last, year][metric]))
        steps = _oracle(path, followed, when, goal, best, year)
        prompt = rng.choice(TRAIN if split == "train" else HELD_OUT).format(
            s=path[0], p=" > ".join((*followed, *when, goal))
        )
        rows = tuple((f, links[f]["owner"], links[f]["partner"], town) for f, town in zip(firms, towns, strict=True))
        table = tuple((firm, y, cell["sales"], cell["profit"], cell["debt"]) for (firm, y), cell in facts.items())
        return FinanceTask(
            self.name, kind, split, level, seed, prompt, answer, steps,
            closing=goal, firms=tuple(sorted(rows)), facts=table,
        )  # fmt: skip


def _oracle(
    path: list[str], followed: list[str], when: tuple[str, ...], goal: str, best: str, year: int
) -> tuple[Step, ...]:
    """Links first, then the best year, then what is asked for; `plan` keeps what is left."""
    last = path[-1]
    found = [f"{link} {firm}" for link, firm in zip(("firm", *followed), path, strict=True)]
    steps = []

    def step(plan: tuple[str, ...], query: str) -> None:
        steps.append(Step(plan, {"query": query}))

    for index, link in enumerate(followed):
        left = followed[index:]
        step((found[index], *left, *when, goal), f"select {link} from firms where name='{path[index]}'")
    if not when:
        step((found[-1], goal), f"select {goal} from firms where name='{last}'")
        return tuple(steps)
    if when[0].startswith("best"):
        step((found[-1], *when, goal), f"select year from facts where firm='{last}' order by {best} desc limit 1")
    if goal != "year":
        query = f"select {goal} from facts where firm='{last}' and year={year}"
        step((found[-1], str(year), goal), query)
    return tuple(steps)
