"""Group sequence policy optimisation (Zheng et al. 2025): one ratio a sample, the geometric mean over its tokens."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import Normalise, Tokens
from overland.rl.algorithms.grpo import GRPO


class GSPO(GRPO):
    """The ratio of whole samples is clipped: routing noise on single tokens of a mixture of experts averages out.

    Each token carries the sample's ratio with a gradient of its own (the paper's GSPO-token, eq. 13), which for one
    advantage a sample is GSPO.
    """

    type: Literal["gspo"] = "gspo"  # type: ignore[assignment]
    """One clipped ratio a sample: the geometric mean over its tokens."""
    normalise: Normalise = "sequence"
    """A token's share of the loss: of all trained tokens (DAPO), of its sample (GRPO), or constant (Dr. GRPO)."""
    scale_by_std: bool = True
    """Divide the advantage by the group's standard deviation."""
    clip_low: float = Field(default=3e-4, gt=0)
    """The sample's ratio is clipped from below at 1 - clip_low. Means over tokens stay near 1: keep it small."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The sample's ratio is clipped from above at 1 + clip_high."""

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        sample_N = tokens.row_mean(tokens.log_ratio_N.detach())
        ratio_N = (tokens.logp_N - tokens.logp_N.detach() + sample_N).clamp(max=10.0).exp()
        free_N = ratio_N * tokens.advantage_N
        held_N = ratio_N.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * tokens.advantage_N
        return -torch.minimum(free_N, held_N), held_N < free_N
