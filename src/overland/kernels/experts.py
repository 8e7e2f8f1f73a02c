"""The grouped expert product: rows sorted by expert, one matrix product per expert.

Shapes: M rows, I in, O out, E experts. Source: MegaBlocks (Gale et al. 2022); torch's grouped_mm.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels.choice import kernel_choice


def grouped_product(x_MI: Tensor, w_EIO: Tensor, counts_E: Tensor) -> Tensor:
    """Row block e of `x_MI` (counts_E[e] rows, in expert order) times `w_EIO[e]`; returns [M, O]."""
    aligned = all(size * x_MI.element_size() % 16 == 0 for size in w_EIO.shape[1:])
    if kernel_choice() == "reference" or x_MI.dtype == torch.float64 or not aligned:
        return grouped_product_reference(x_MI, w_EIO, counts_E)
    return F.grouped_mm(x_MI, w_EIO, offs=counts_E.cumsum(0).to(torch.int32))


def grouped_product_reference(x_MI: Tensor, w_EIO: Tensor, counts_E: Tensor) -> Tensor:
    """The same, a loop over experts."""
    return torch.cat([rows @ w for rows, w in zip(x_MI.split(counts_E.tolist()), w_EIO, strict=True)])
