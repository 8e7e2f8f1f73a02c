"""Rejection sampling: learn from what worked and nothing else (STaR, Zelikman et al. 2022; RAFT, Dong et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from overland.rl.samples import Group


@dataclass(frozen=True)
class Successes:
    """Every success within its budget counts 1, all else 0: with the `likelihood` loss this is SFT on own successes."""

    def advantages(self, group: Group) -> dict[str, float]:
        return {s.id: 1.0 for s in group.judged if s.success and not s.over_budget}
