"""Root-mean-square normalisation over the last dimension, gated where asked for.

    y = w x / sqrt(mean(x^2) + eps) * sigmoid(gate)

Source: Zhang and Sennrich 2019; for the gate Kimi Linear (2025) §4; reference/architecture.md §2.2, §4.5.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import Compiled

_native = Compiled("norm", norm_forward="pppp iid", norm_backward="ppppppp iid")


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, gate: Tensor | None = None) -> Tensor:
    """`x` [..., D] normed and weighted, times the sigmoid of `gate` (same shape as `x`) where one is given.

    Statistics in fp32 at least; of half precision the cast comes before the weight, as in the released models.
    """
    if _native.runs(x, weight_D, gate) and x.numel():
        if torch.is_grad_enabled():
            return _CompiledNorm.apply(x, weight_D, gate, eps)
        return _forward(x.contiguous(), weight_D, None if gate is None else gate.contiguous(), eps)
    if kernel_choice() == "reference":
        return rms_norm_reference(x, weight_D, eps, gate)
    if x.dtype in (torch.float32, torch.float64):
        y = F.rms_norm(x, weight_D.shape, weight_D.to(x.dtype), eps)
    else:
        y = weight_D * F.rms_norm(x.float(), weight_D.shape, None, eps).to(x.dtype)
    return y if gate is None else y * gate.sigmoid()


def rms_norm_reference(x: Tensor, weight_D: Tensor, eps: float, gate: Tensor | None = None) -> Tensor:
    """The formula as it stands."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = weight_D * (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return y if gate is None else y * gate.sigmoid()


def _forward(x: Tensor, weight: Tensor, gate: Tensor | None, eps: float) -> Tensor:
    y, D = torch.empty_like(x), x.shape[-1]
    _native("norm_forward", y, x, weight, gate, x.numel() // D, D, eps)
    return y


class _CompiledNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gate: Tensor | None, eps: float) -> Tensor:
        x, gate, ctx.eps = x.contiguous(), None if gate is None else gate.contiguous(), eps
        ctx.save_for_backward(x, weight, gate)
        return _forward(x, weight, gate, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        d_x, d_weight, D = torch.empty_like(x), torch.zeros_like(weight), x.shape[-1]
        d_gate = None if gate is None else torch.empty_like(gate)
        d_y = gradients[0].contiguous()
        _native("norm_backward", d_x, d_weight, d_gate, d_y, x, weight, gate, x.numel() // D, D, ctx.eps)
        return d_x, d_weight, d_gate, None
