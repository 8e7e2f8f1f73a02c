"""REINFORCE leave-one-out (Kool et al. 2019; Ahmadian et al. 2024): the baseline is the mean of the others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import GroupAlgorithm, Tokens, clipped
from overland.rl.samples import Group


class RLOO(GroupAlgorithm):
    """Reward minus the mean reward of the group's other samples: unbiased, unlike a mean that holds the sample."""

    type: Literal["rloo"] = "rloo"
    """Reward minus the mean of the group's others."""
    clip_low: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from above at 1 + clip_high."""

    @property
    def wants_variance(self) -> bool:
        return True

    def advantages(self, group: Group) -> dict[str, float]:
        if not group.has_variance:
            return {}
        rewards = {s.id: s.reward for s in group.judged if s.reward is not None}
        total, others = sum(rewards.values()), len(rewards) - 1
        return {id: reward - (total - reward) / others for id, reward in rewards.items()}

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return clipped(tokens, self.clip_low, self.clip_high)
