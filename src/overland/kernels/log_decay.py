"""KDA's forget gate: the logarithm of what each key channel keeps of the state.

    bounded (Kimi K3)          g = bound sigmoid(exp(A) (z + bias))          in (bound, 0), bound < 0
    unbounded (Kimi-Linear)    g = -exp(A) softplus(z + bias)

Shapes: B batch, T tokens, H heads, K key dim. Source: reference/architecture.md §4.2.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("log_decay", decay_forward="pppp iiid", decay_backward="ppppppp iiid")


def log_decay(z_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor, bound: float | None) -> Tensor:
    """The log decay [B, T, H, K] from the gate's raw values, in fp32 at least; `bound` None is the unbounded gate."""
    z_BTHK = z_BTHK.to(torch.promote_types(z_BTHK.dtype, bias_HK.dtype))
    if _native.runs(z_BTHK, bias_HK, A_log_H) and bound != 0:
        return _CompiledDecay.apply(z_BTHK, bias_HK, A_log_H.exp(), bound or 0.0)
    return log_decay_reference(z_BTHK, bias_HK, A_log_H, bound)


def log_decay_reference(z_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor, bound: float | None) -> Tensor:
    """The formulas as they stand."""
    x_BTHK, rate_H1 = z_BTHK + bias_HK, A_log_H.exp()[:, None]
    return -rate_H1 * F.softplus(x_BTHK) if bound is None else bound * torch.sigmoid(rate_H1 * x_BTHK)


class _CompiledDecay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, rate: Tensor, bound: float) -> Tensor:
        z, bias = z.contiguous(), bias.contiguous()
        ctx.save_for_backward(z, bias, rate)
        g, (H, K) = torch.empty_like(z), bias.shape
        ctx.sizes = (z.numel() // (H * K), H, K, bound)
        _native("decay_forward", g, z, bias, rate, *ctx.sizes)
        return g

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, bias, rate = ctx.saved_tensors
        d_z, d_bias, d_rate = torch.empty_like(z), torch.zeros_like(bias), torch.zeros_like(rate)
        _native("decay_backward", d_z, d_bias, d_rate, gradients[0].contiguous(), z, bias, rate, *ctx.sizes)
        return d_z, d_bias, d_rate, None
