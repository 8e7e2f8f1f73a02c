"""One step's groups, with dynamic sampling (Yu et al. 2025, DAPO, §3.2): what teaches nothing is replaced.

A group without variance gives no gradient. Up to `extra_rounds` times, as many new groups are dealt as the batch lacks;
after that the step trains on what there is. What was dropped is counted, kept in the run folder, and told to the
curriculum, so that the cost of resampling is seen and easy cells are dealt less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from overland.rl.budgets import Budgets
from overland.rl.curriculum import Curriculum
from overland.rl.samples import Group
from overland.rl.section import RLSection
from overland.rl.source import Rollouts
from overland.rl.staleness import age_figures, without_stale


@dataclass(frozen=True)
class Gathered:
    """`kept` is trained on; `all` is everything that was rolled out, in order."""

    kept: list[Group]
    all: list[Group] = field(repr=False)
    aged: dict[str, float] = field(default_factory=dict)
    """Ages of the last round's samples."""

    def figures(self) -> dict[str, float]:
        """How much was rolled out for nothing; empty where nothing was dealt again."""
        dropped = len(self.all) - len(self.kept)
        if not dropped:
            return dict(self.aged)
        ids = {s.id for g in self.kept for s in g.samples}
        wasted = sum(s.output_tokens for g in self.all for s in g.samples if s.id not in ids)
        return self.aged | {
            "rl/accept_rate": len(self.kept) / len(self.all),
            "rl/dropped_groups": float(dropped),
            "rl/dropped_tokens": float(wasted),
        }


def gather(rollouts: Rollouts, curriculum: Curriculum, budgets: Budgets, section: RLSection, version: int) -> Gathered:
    """Roll out one step's groups, priced, with the curriculum told of all of them."""

    aged: dict[str, float] = {}

    def run(count: int) -> list[Group]:
        groups = rollouts.run(curriculum.deal(count), version=version)
        aged.update(age_figures(groups, version, section.max_age))
        priced = [budgets.price(g, version) for g in without_stale(groups, version, section.max_age)]
        curriculum.rates.update(priced)
        return priced

    kept = run(section.tasks_per_step)
    everything = list(kept)
    for _ in range(section.extra_rounds):
        empty = [g for g in kept if not g.has_variance]
        if not empty:
            break
        new = run(len(empty))
        everything += new
        fresh = iter(new)
        kept = [g if g.has_variance else next(fresh) for g in kept]
    return Gathered(kept, everything, aged)
