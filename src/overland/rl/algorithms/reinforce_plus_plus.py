"""REINFORCE++ (Hu et al. 2025): PPO's clip without a critic, advantages whitened over the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Literal

from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import Advantage, GroupAlgorithm, Scored, Tokens, clipped, whitened
from overland.rl.samples import Group


class ReinforcePlusPlus(GroupAlgorithm):
    """The return from each token on, whitened over all trained tokens of the batch."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    """Clipped ratios, no critic, advantages whitened over the batch."""
    baseline: Literal["none", "group"] = "none"
    """`group` subtracts the mean of the group before whitening (REINFORCE++-baseline)."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount by trained token of a reward that comes at the end. Not used with a baseline."""
    clip_low: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from above at 1 + clip_high."""

    def advantages(self, group: Group) -> dict[str, float]:
        rewards = {s.id: s.reward for s in group.judged if s.reward is not None}
        if self.baseline == "none" or len(rewards) < 2:
            return rewards
        middle = mean(rewards.values())
        return {id: reward - middle for id, reward in rewards.items()}

    def batch_advantages(self, groups: Sequence[Group], scored: Scored) -> Mapping[str, Advantage]:
        tokens = {s.id: s.trained_tokens for g in groups for s in g.samples}
        returns: dict[str, Advantage] = {}
        for group in groups:
            for id, reward in self.advantages(group).items():
                discounted = self.gamma < 1.0 and self.baseline == "none"
                returns[id] = (
                    tuple(reward * self.gamma ** (tokens[id] - 1 - t) for t in range(tokens[id]))
                    if discounted
                    else reward
                )
        return whitened(returns, tokens)

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return clipped(tokens, self.clip_low, self.clip_high)
