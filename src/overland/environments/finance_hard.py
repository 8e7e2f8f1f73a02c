"""Finance levels 4 and 5: ratios along a chain of firms, from tables and from the filings that restate them.

A filing restates one figure of one quarter, in thousands or in millions (tables are in thousands), and names the firm
to go on with. Which of a firm's filings counts is said in the older one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from overland.environments.filings_world import FilingsWorld
from overland.environments.names import draw_codes, draw_names
from overland.environments.spoken import SpokenTask, plan
from overland.environments.sql_world import METRICS, Fact, Firm
from overland.environments.task import Step

KINDS = {4: ("mean", "trade"), 5: ("mean", "trade")}
LENGTH = {4: 4, 5: 10}
"""Firms in the chain: at level 5 more than one query shows rows for."""
QUARTERS = ("q1", "q2", "q3", "q4")

ASKED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "start": (
            "Begin with {firm} and go from firm to firm as the newest filings say. For each, work out the {top} of "
            "{quarter} in percent of its {bottom}; newest filings restate figures of the tables, which are thousands.",
            "Follow the newest filings from {firm} on. In {quarter}, what is each firm's {top} as a percentage of its "
            "{bottom}? Figures that a newest filing restates replace those of the tables (thousands).",
        ),
        "mean": ("Answer with the mean of these percentages, to one decimal.",),
        "trade": ("Buy 100 shares of the firm with the highest percentage and nothing else, then say done.",),
    },
    "held_out": {
        "start": (
            "We compare firms: {firm} first, then whichever its latest filing leads to, and so forth. The measure is "
            "{top} over {bottom} in {quarter} times one hundred, with the latest restatements; tables count thousands.",
        ),
        "mean": ("Tell us the average of the measure with one decimal.",),
        "trade": ("The firm where it is greatest gets an order of 100 shares, no other does. Reply done.",),
    },
}


@dataclass(frozen=True)
class FilingsTask(SpokenTask):
    """Tables, texts and the orders that are wanted."""

    firms: tuple[Firm, ...] = field(kw_only=True)
    facts: tuple[Fact, ...] = field(kw_only=True)
    texts: dict[str, str] = field(kw_only=True)
    orders: dict[str, int] = field(kw_only=True)

    def world(self) -> FilingsWorld:
        return FilingsWorld(self.firms, self.facts, self.texts, self.orders)


def build(rng: random.Random, split: str, level: int, seed: int, kind: str) -> FilingsTask:
    names = draw_names(rng, split, LENGTH[level] + 6)
    chain, towns = names[: LENGTH[level]], names[-4:]
    firms = names[:-4]
    quarter = rng.choice(QUARTERS)
    top, bottom, _ = rng.sample(METRICS, 3)
    facts = {(firm, q): {metric: rng.randrange(1000, 10_000) for metric in METRICS} for firm in firms for q in QUARTERS}
    texts: dict[str, str] = {}
    steps: list[Step] = []
    ratios: dict[str, float] = {}
    for at, firm in enumerate(chain):
        restated = rng.choice((top, bottom))
        millions = rng.random() < 0.5
        value = rng.randrange(1000, 10_000)
        shown = f"{value / 1000:g} million" if millions else f"{value} thousand"
        after = (
            f"Its figures belong with those of {chain[at + 1]}." if at + 1 < len(chain) else "No other firm follows."
        )
        wrong = rng.choice([other for other in firms if other not in chain])
        # What a filing is called tells nothing: both have to be listed and read.
        annual, amended = (f"{firm}-{code}" for code in draw_codes(rng, 2))
        texts[annual] = (
            f"{firm}, annual filing. {restated} of {quarter} was restated to {rng.randrange(1000, 10_000)} thousand. "
            f"Its figures belong with those of {wrong}. This filing was replaced by {amended}."
        )
        texts[amended] = f"{firm}, amended filing. {restated} of {quarter} is restated to {shown}. {after}"
        now = {**facts[firm, quarter], restated: value}
        ratios[firm] = 100 * now[top] / now[bottom]
        other = bottom if restated == top else top
        query = f"select {other} from facts where firm='{firm}' and quarter='{quarter}'"
        steps += [
            Step(plan(f"see the filings of {firm}", "read the newest", "query"), {"firm": firm}, "filings"),
            Step(plan(f"read the filing of {firm}", "see what replaced it"), {"name": annual}, "filing"),
            Step(plan(f"read what replaced it for {firm}", "query"), {"name": amended}, "filing"),
            Step(plan(f"query {other} of {firm}", "go on"), {"query": query}, "sql"),
            # What is restated is looked up as well: a correction far from the old figure is worth a second look.
            Step(
                plan(f"compare {restated} of {firm}", "go on"),
                {"query": query.replace(f"select {other}", f"select {restated}")},
                "sql",
            ),
        ]
    best = max(ratios, key=lambda firm: ratios[firm])
    orders = {best: 100} if kind == "trade" else {}
    if orders:
        steps.append(Step(plan(f"buy {best}"), {"firm": best, "shares": 100}, "order"))
    words = ASKED[split]
    start = rng.choice(words["start"]).format(firm=chain[0], top=top, bottom=bottom, quarter=quarter)
    mean = f"{sum(ratios.values()) / len(ratios):.1f}"
    rows: list[Firm] = []
    for firm in sorted(firms):
        owner, partner, lender, client = rng.sample([f for f in firms if f != firm], 4)
        rows.append((firm, owner, partner, lender, client, rng.choice(towns)))
    table = tuple((firm, q, c["sales"], c["profit"], c["debt"]) for (firm, q), c in facts.items())
    return FilingsTask(
        "finance", kind, split, level, seed, f"{start} {rng.choice(words[kind])}", "done" if orders else mean,
        tuple(steps), outcome="state" if orders else "answer",
        closing="the order is placed" if orders else f"mean {mean}",
        tolerance=0.0 if orders else 0.1, firms=tuple(rows), facts=table, texts=texts, orders=orders,
    )  # fmt: skip
