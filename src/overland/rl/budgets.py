"""Effort budgets: what an episode may spend before it is paid for overspending instead of for its work.

K3's rule: every problem has a budget b0, measured on the starting policy; an episode that spends more than tau x b0
gets -1 instead of its task reward. Here b0 is kept per (domain, level), because tasks are generated and never repeat.
Cost efforts (low) start with a generous tau that shrinks, so that thinking is not punished away before it pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import mean

from overland.rl.samples import Group, Sample
from overland.rl.section import DomainSection, RLSection

Cell = tuple[str, int]


class Budgets:
    """b0 by (domain, level) and the reward that goes with a spending."""

    def __init__(self, section: RLSection, b0: dict[Cell, float] | None = None) -> None:
        self.section = section
        self.b0: dict[Cell, float] = dict(b0 or {})

    def spent(self, domain: str, sample: Sample) -> int:
        """The tokens of a sample that its domain's budget counts."""
        rule = self.section.domains.get(domain, DomainSection()).count
        return sample.thinking_tokens if rule == "thinking" else sample.output_tokens

    def measure(self, groups: Iterable[Group]) -> None:
        """Set b0 to the mean spending of the starting policy's successes, over all efforts.

        A cell without a success takes the mean of all its samples: a failure's length is a poor guide, but an unset
        budget is none. At least 1 token, so that tau always means something.
        """
        by_cell: dict[Cell, list[Sample]] = {}
        for group in groups:
            by_cell.setdefault((group.domain, group.level), []).extend(group.judged)
        for (domain, level), samples in by_cell.items():
            chosen = [s for s in samples if s.success] or samples
            if chosen:
                self.b0[domain, level] = max(1.0, mean(self.spent(domain, s) for s in chosen))

    def limit(self, domain: str, level: int, effort: str, step: int) -> float:
        """Tokens that an episode may spend at a step; infinite where nothing was measured."""
        b0 = self.b0.get((domain, level))
        return math.inf if b0 is None else self.section.efforts.of(effort).tau_at(step) * b0

    def price(self, group: Group, step: int) -> Group:
        """The group with its final rewards: overspending replaces the reward, a malformed turn costs the penalty.

        Samples without a reward stay without one.
        """
        limit = self.limit(group.domain, group.level, group.effort, step)
        hard = self.section.efforts.of(group.effort).output_tokens
        priced = [self._price(s, self.spent(group.domain, s) > limit) for s in group.samples]
        return group.with_samples([self._overlong(s, hard) for s in priced] if self.section.overlong.buffer else priced)

    def _overlong(self, sample: Sample, hard: int) -> Sample:
        """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13)."""
        rule = self.section.overlong
        into = min(1.0, (sample.output_tokens - (hard - rule.buffer)) / rule.buffer)
        if sample.reward is None or sample.over_budget or into <= 0:
            return sample
        return replace(sample, reward=sample.reward - rule.penalty * into)

    def _price(self, sample: Sample, over: bool) -> Sample:
        if sample.reward is None:
            return sample
        monitors = self.section.monitors
        if monitors.action != "flag" and any(kind in monitors.kinds for kind in sample.hacks):
            return replace(sample, reward=None if monitors.action == "drop" else min(0.0, sample.reward))
        if over:
            return replace(sample, reward=self.section.over_budget_reward, over_budget=True)
        if sample.parse_errors and self.section.parse_penalty:
            return replace(sample, reward=sample.reward - self.section.parse_penalty)
        return sample

    def state_dict(self) -> dict[str, float]:
        return {f"{domain}/{level}": b0 for (domain, level), b0 in sorted(self.b0.items())}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.b0 = {(key.rpartition("/")[0], int(key.rpartition("/")[2])): b0 for key, b0 in state.items()}
