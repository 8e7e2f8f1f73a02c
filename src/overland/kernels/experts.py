"""The grouped expert product: rows sorted by expert, one matrix product per expert.

Shapes: M rows, I in, O out, E experts. Source: MegaBlocks (Gale et al. 2022); torch's grouped_mm.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import Compiled

_native = Compiled("grouped", grouped_forward="pppp iii", grouped_backward="ppppppp iii")
_LARGEST = 64 * 1024  # elements of an expert's matrix that stays in the cache; beyond it a library's product is better


def grouped_product(x_MI: Tensor, w_EIO: Tensor, counts_E: Tensor) -> Tensor:
    """Row block e of `x_MI` (counts_E[e] rows, in expert order) times `w_EIO[e]`; returns [M, O]."""
    _, I, O = w_EIO.shape
    if _native.runs(x_MI, w_EIO) and I * O <= _LARGEST and x_MI.numel():
        if int(counts_E.sum()) != x_MI.shape[0]:
            raise ValueError(f"the experts' rows add up to {int(counts_E.sum())}, there are {x_MI.shape[0]}")
        return _CompiledProduct.apply(x_MI, w_EIO, counts_E)
    aligned = all(size * x_MI.element_size() % 16 == 0 for size in w_EIO.shape[1:])
    if kernel_choice() == "reference" or x_MI.dtype == torch.float64 or not aligned:
        return grouped_product_reference(x_MI, w_EIO, counts_E)
    return F.grouped_mm(x_MI, w_EIO, offs=counts_E.cumsum(0).to(torch.int32))


def grouped_product_reference(x_MI: Tensor, w_EIO: Tensor, counts_E: Tensor) -> Tensor:
    """The same, a loop over experts."""
    return torch.cat([rows @ w for rows, w in zip(x_MI.split(counts_E.tolist()), w_EIO, strict=True)])


class _CompiledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
        x, w, counts = x.contiguous(), w.contiguous(), counts.long().contiguous()
        ctx.save_for_backward(x, w, counts)
        y = x.new_empty(x.shape[0], w.shape[-1])
        _native("grouped_forward", y, x, w, counts, *w.shape)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w, counts = ctx.saved_tensors
        d_x, d_w, scratch = torch.empty_like(x), torch.empty_like(w), w.new_empty(w.shape[1:])
        _native("grouped_backward", d_x, d_w, scratch, gradients[0].contiguous(), x, w, counts, *w.shape)
        return d_x, d_w, None
