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
from overland.model.stepping import plain_weights


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
        self._held = kernels.Held()

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., D] to [..., D]."""
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x), self.activation))

    def step(self, reading: kernels.Reading) -> Tensor | None:
        """The residual after this feed-forward for a decoding step, in one kernel; None where it cannot be used."""
        weights, caps = self.step_weights(), step_caps(self.activation)
        if weights is None or caps is None or not kernels.steps_ffn(reading, self._held, weights):
            return None
        return kernels.dense_step(reading, self._held, weights, caps)

    def step_weights(self) -> kernels.GLUWeights | None:
        """What the fused decoding step reads; None where a part was replaced."""
        weights = plain_weights(self, ("gate_proj", "up_proj", "down_proj"))
        return None if weights is None else kernels.GLUWeights(*weights)


def step_caps(activation: ActivationConfig) -> kernels.Caps | None:
    """The gated product as the fused step takes it: SiTU's caps, zeros for SwiGLU; None for another one."""
    if activation.kind == "situ":
        return activation.gate_cap, activation.up_cap
    return (0.0, 0.0) if activation.kind == "swiglu" else None
