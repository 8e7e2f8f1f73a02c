"""SiTU-GLU's product, b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2), with its gradient written out.

The compiled form reads the two halves of one projection where they lie and keeps nothing but its inputs. The torch form
writes tanh(x) = 2 sigmoid(2x) - 1 (exact to 6e-8 absolute), because on a CPU torch's tanh costs seven times a sigmoid.
Source: Kimi K3 report; reference/architecture.md §3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import Compiled

_native = Compiled("situ", situ_forward="ppp iii dd", situ_backward="ppppp iii dd")


def situ_glu(gate: Tensor, up: Tensor, gate_cap: float, up_cap: float) -> Tensor:
    """The capped product of `gate` and `up` (same shape), formed in fp32 at least and cast back."""
    if _native.runs(gate, up):
        return _CompiledSiTU.apply(gate, up, gate_cap, up_cap)
    if kernel_choice() == "reference" or gate.dtype == torch.float64:
        return situ_glu_reference(gate, up, gate_cap, up_cap)
    return _SiTU.apply(gate.float(), up.float(), gate_cap, up_cap).to(gate.dtype)


def situ_glu_reference(gate: Tensor, up: Tensor, gate_cap: float, up_cap: float) -> Tensor:
    """The formula as it stands."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(wide), up.to(wide)
    return (gate_cap * torch.tanh(g / gate_cap) * torch.sigmoid(g) * (up_cap * torch.tanh(u / up_cap))).to(gate.dtype)


class _CompiledSiTU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gate_cap: float, up_cap: float) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        ctx.caps = gate_cap, up_cap
        y = torch.empty_like(gate)
        _native("situ_forward", y, gate, up, 1, y.numel(), y.numel(), gate_cap, up_cap)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gate, up = ctx.saved_tensors
        d_gate, d_up, n = torch.empty_like(gate), torch.empty_like(up), gate.numel()
        _native("situ_backward", d_gate, d_up, gradients[0].contiguous(), gate, up, 1, n, n, *ctx.caps)
        return d_gate, d_up, None, None


class _SiTU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gate_cap: float, up_cap: float) -> Tensor:
        open_ = gate.sigmoid()
        tanh_gate = (gate * (2 / gate_cap)).sigmoid_().mul_(2).sub_(1)
        tanh_up = (up * (2 / up_cap)).sigmoid_().mul_(2).sub_(1)
        ctx.save_for_backward(open_, tanh_gate, tanh_up)
        ctx.caps = gate_cap, up_cap
        return (tanh_gate * (gate_cap * up_cap)).mul_(open_).mul_(tanh_up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        open_, tanh_gate, tanh_up = ctx.saved_tensors
        gate_cap, up_cap = ctx.caps
        (d_out,) = gradients
        scaled = d_out * open_
        # d/du: b1 tanh(g/b1) sigmoid(g) (1 - tanh^2(u/b2))
        d_up = (tanh_up * tanh_up).neg_().add_(1).mul_(tanh_gate).mul_(scaled).mul_(gate_cap)
        # d/dg: sigmoid(g) [1 - tanh^2 + b1 tanh (1 - sigmoid(g))] b2 tanh(u/b2), with the squares gathered
        slope = (1 - open_).mul_(gate_cap).sub_(tanh_gate).mul_(tanh_gate).add_(1)
        return slope.mul_(tanh_up).mul_(scaled).mul_(up_cap), d_up, None, None
