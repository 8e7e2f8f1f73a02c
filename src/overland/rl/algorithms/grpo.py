"""Group-relative policy optimisation (Shao et al. 2024, DeepSeekMath, §4.1)."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Literal

from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import GroupAlgorithm, Tokens, clipped
from overland.rl.samples import Group


class GRPO(GroupAlgorithm):
    """Group-relative advantages: reward minus the mean of its group.

    Groups are the samples of one task at one effort. A sample whose reward is None (an infrastructure failure) takes
    no part; a group with fewer than two survivors, or without variance, gives no gradient and is counted.
    """

    type: Literal["grpo"] = "grpo"
    """Reward minus the group's mean, a clipped ratio per token."""
    scale_by_std: bool = False
    """Divide the advantage by the group's standard deviation, as the original paper does. It weighs nearly solved and
    nearly hopeless tasks up (Liu et al. 2025, Dr. GRPO, §3)."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    clip_low: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The importance ratio is clipped from above at 1 + clip_high; more room up keeps exploration alive (DAPO)."""

    @property
    def wants_variance(self) -> bool:
        return True

    def advantages(self, group: Group) -> dict[str, float]:
        if not group.has_variance:
            return {}
        rewards = {s.id: s.reward for s in group.samples if s.reward is not None}
        baseline = mean(rewards.values())
        scale = stdev(rewards.values()) + self.eps if self.scale_by_std else 1.0
        return {id: (reward - baseline) / scale for id, reward in rewards.items()}

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return clipped(tokens, self.clip_low, self.clip_high)
