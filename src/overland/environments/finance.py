"""Finance tasks: figures of firms that own one another, asked from a real SQLite file. Level L takes L + 1 queries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments import finance_hard
from overland.environments.names import draw_names
from overland.environments.prompts import ask, halfway
from overland.environments.sql_world import METRICS, Fact, Firm, SqlWorld
from overland.environments.task import Step, Task
from overland.environments.taskset import Taskset

LINKS = ("owner", "partner", "lender", "client")
QUARTERS = ("q1", "q2", "q3", "q4")
COLUMNS = ("town", *LINKS)
FIGURES = [n for n in range(100, 1000) if len(set(str(n))) == 3]
"""Figures of three different digits: what follows a digit is never a guess."""


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
        **{level: tuple("link_" * level + kind for kind in ("value", "firm", "top", "peak")) for level in range(4)},
        **finance_hard.KINDS,
    }

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> Task:
        if level >= 4:
            return finance_hard.build(rng, split, level, seed, kind)
        count = rng.randint(6, 8)
        names = draw_names(rng, split, 2 * count)
        firms, towns = names[:count], names[count:]
        # All cells of a world differ: a figure from a wrong cell is never right by luck, and no best quarter is a tie.
        cells = iter(rng.sample(FIGURES, count * len(QUARTERS) * len(METRICS)))
        facts = {(firm, quarter): {metric: next(cells) for metric in METRICS} for firm in firms for quarter in QUARTERS}
        links = {firm: {link: rng.choice([f for f in firms if f != firm]) for link in LINKS} for firm in firms}

        path, done = firms[: level + 1], halfway(rng, level)
        words = ("firm", *rng.sample(LINKS, done + level))
        followed = words[done + 1 :]
        column = rng.choice([column for column in COLUMNS if column not in words])
        for here, link, there in zip(path, followed, path[1:], strict=False):
            links[here][link] = there
        last = path[-1]
        for link in LINKS:  # no answer may stand in the prompt
            if links[last][link] in path:
                links[last][link] = rng.choice([firm for firm in firms if firm not in path])

        best, metric = rng.sample(METRICS, 2)
        quarter = rng.choice(QUARTERS)
        if kind.endswith(("top", "peak")):
            quarter = max(QUARTERS, key=lambda q: facts[last, q][best])
        asked, query, answer = {
            "value": (
                (quarter, metric),
                f"select {metric} from facts where firm='{last}' and quarter='{quarter}'",
                str(facts[last, quarter][metric]),
            ),
            "firm": (
                (column,),
                f"select {column} from firms where name='{last}'",
                towns[firms.index(last)] if column == "town" else links[last][column],
            ),
            "top": (
                (f"top{best}", metric),
                f"select {metric} from facts where firm='{last}' order by {best} desc limit 1",
                str(facts[last, quarter][metric]),
            ),
            "peak": (
                (f"top{best}", "quarter"),
                f"select quarter from facts where firm='{last}' order by {best} desc limit 1",
                quarter,
            ),
        }[kind.rsplit("_", 1)[-1]]
        queries = [f"select {link} from firms where name='{here}'" for here, link in zip(path, followed, strict=False)]
        steps = [
            Step((f"{words[done + at]} {here}", *words[done + at :], *asked), {"query": text})
            for at, (here, text) in enumerate(zip(path, (*queries, query), strict=True))
        ]
        prompt = ask(rng, split, f"{words[done]} {path[0]}", (*words, *asked))
        rows = [
            (firm, to["owner"], to["partner"], to["lender"], to["client"], town)
            for (firm, to), town in zip(links.items(), towns, strict=True)
        ]
        table = tuple(
            (firm, quarter, cell["sales"], cell["profit"], cell["debt"]) for (firm, quarter), cell in facts.items()
        )
        return FinanceTask(
            self.name, kind, split, level, seed, prompt, answer, tuple(steps),
            closing=asked[-1], firms=tuple(sorted(rows)), facts=table,
        )  # fmt: skip
