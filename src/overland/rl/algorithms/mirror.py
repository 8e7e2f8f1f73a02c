"""Policy mirror descent for stale samples, regularised per token (Kimi k1.5, 2025, §2.3.2; K2, §3.2).

Meant for K3's partial rollouts.

A trajectory that was paused and resumed has tokens of several policies. Instead of cutting the gradient where a ratio
leaves a window, the loss pulls every token back to the policy that wrote it: the gradient is
-(A - tau * log(p / p_old)) * grad log p, which is that of the square ((A - tau * log ratio)^2) / (2 tau) and vanishes
where the policy has moved as far as the advantage is worth.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import Tokens
from overland.rl.algorithms.grpo import GRPO


class Mirror(GRPO):
    """-A * log p + tau / 2 * log(p / p_old)^2, token by token, with GRPO's advantages."""

    type: Literal["mirror"] = "mirror"  # type: ignore[assignment]
    """A pull towards the policy that wrote each token, instead of a clip: for samples that span several policies."""
    tau: float = Field(default=0.1, gt=0)
    """Strength of the pull."""

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        loss_N = -(tokens.advantage_N * tokens.logp_N) + 0.5 * self.tau * tokens.log_ratio_N**2
        return loss_N, torch.zeros_like(loss_N, dtype=torch.bool)
