"""Importance correction for a sampler that is not quite the trainer: other kernels, other precision, older weights.

Each trained token's loss is multiplied by w = p_trainer / p_sampler, both before the update; `token` uses the token's
own ratio, `sequence` the product over the sample. A ratio outside the bounds is cut to them (truncate) or its token or
sample is left out (mask). PPO's own ratio then starts at exactly 1.
Sources: truncated importance sampling (Yao et al. 2025), masked (IcePop, Ant 2025); the names follow TRL and verl.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from overland.config import Section


class CorrectionSection(Section):
    """What is done about the mismatch between trainer and sampler."""

    level: Literal["none", "token", "sequence"] = "none"
    """`none`: the sampler's log-probabilities are the ratio's denominator. `token`, `sequence`: they are told apart."""
    action: Literal["truncate", "mask"] = "truncate"
    """A weight outside the bounds is cut to them, or the token (the sample) is left out."""
    low: float = Field(default=0.0, ge=0)
    """Least weight."""
    high: float = Field(default=2.0, gt=0)
    """Largest weight."""

    @model_validator(mode="after")
    def _ordered(self) -> CorrectionSection:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        return self


def importance_weights(
    trainer_logp_N: Tensor, sampler_logp_N: Tensor, row_N: Tensor, section: CorrectionSection
) -> tuple[Tensor, Tensor]:
    """(weight [N], whether the bounds changed it [N]); no gradient. `row_N` is each token's sample."""
    log_ratio_N = (trainer_logp_N - sampler_logp_N).detach()
    if section.level == "sequence":
        rows = int(row_N.max()) + 1 if len(row_N) else 0
        log_ratio_N = log_ratio_N.new_zeros(rows).index_add(0, row_N, log_ratio_N)[row_N]
    ratio_N = log_ratio_N.clamp(-20.0, 20.0).exp()  # beyond e^20 every bound has cut it
    outside_N = (ratio_N < section.low) | (ratio_N > section.high)
    if section.action == "mask":
        return torch.where(outside_N, torch.zeros_like(ratio_N), ratio_N), outside_N
    return ratio_N.clamp(section.low, section.high), outside_N
