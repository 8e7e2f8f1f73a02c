"""Rejection sampling: learn from what worked and nothing else (STaR, Zelikman et al. 2022; RAFT, Dong et al. 2023)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from overland.rl.algorithms.base import GroupAlgorithm, Tokens, likelihood
from overland.rl.samples import Group


class Successes(GroupAlgorithm):
    """Every success within its budget counts 1, all else 0: this is SFT on own successes."""

    type: Literal["successes"] = "successes"
    """Maximum likelihood on the samples that succeeded within their budget (a control)."""

    @property
    def wants_variance(self) -> bool:
        return True

    def advantages(self, group: Group) -> dict[str, float]:
        return {s.id: 1.0 for s in group.judged if s.success and not s.over_budget}

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return likelihood(tokens)
