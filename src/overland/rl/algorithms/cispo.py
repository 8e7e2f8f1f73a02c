"""Clipped importance sampling weights (MiniMax-M1, 2025, §3.1): the weight is clipped, no token loses its gradient."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import Tokens
from overland.rl.algorithms.grpo import GRPO


class CISPO(GRPO):
    """-stop_gradient(min(ratio, 1 + clip_high)) * A * log p."""

    type: Literal["cispo"] = "cispo"  # type: ignore[assignment]
    """The ratio is a clipped weight on the log-likelihood: rare, pivotal tokens keep their gradient."""
    scale_by_std: bool = True
    """Divide the advantage by the group's standard deviation."""
    clip_low: float = Field(default=1.0, gt=0)
    """The weight is at least 1 - clip_low; 1 leaves it unbounded from below, as the paper does."""
    clip_high: float = Field(default=4.0, gt=0)
    """The weight is at most 1 + clip_high."""

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratio_N = tokens.log_ratio_N.detach().exp()
        weight_N = ratio_N.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return -(weight_N * tokens.advantage_N * tokens.logp_N), weight_N != ratio_N
