"""Root-mean-square normalisation as K3 has it: statistics in fp32, the cast before the weight.

Source: Zhang and Sennrich 2019; reference/architecture.md §2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overland import kernels


class RMSNorm(nn.Module):
    """y = w * cast(x / sqrt(mean(x^2) + eps)), over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """The normed `x`, times sigmoid(`gate`) (same shape) where one is given."""
        return kernels.rms_norm(x, self.weight, self.eps, gate)
