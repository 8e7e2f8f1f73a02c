"""Gated feed-forwards: W_down( gated(W_gate x, W_up x) ), with one of three gated products.

    swiglu           silu(g) u
    situ             b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2)            both softly capped (Kimi K3)
    clamped_swiglu   g' sigmoid(alpha g') (u' + 1), g' = min(g, limit), u' = clamp(u, -limit, limit)      (gpt-oss)

Source: Shazeer 2020; Kimi K3 report; gpt-oss model card; reference/architecture.md §3.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from overland import kernels
from overland.model.config import ActivationConfig


def gated(gate: Tensor, up: Tensor, activation: ActivationConfig) -> Tensor:
    """The gated product of `gate` and `up` (same shape)."""
    if activation.kind == "situ":
        return kernels.situ_glu(gate, up, activation.gate_cap, activation.up_cap)
    if activation.kind == "swiglu":
        return F.silu(gate) * up
    gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
    return gate * (activation.alpha * gate).sigmoid() * (up + 1)


class FeedForward(nn.Module):
    """A dense (or shared-expert) gated feed-forward from `hidden` to `width` and back."""

    def __init__(self, hidden: int, width: int, activation: ActivationConfig, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=bias)
        self.up_proj = nn.Linear(hidden, width, bias=bias)
        self.down_proj = nn.Linear(width, hidden, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x), self.activation))
