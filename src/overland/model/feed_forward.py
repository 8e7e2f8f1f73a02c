"""SiTU-GLU: a gated feed-forward whose gate and value are softly capped.

    ffn(x) = W_down( b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2) ),  g = W_gate x, u = W_up x

Source: Kimi K3 report; reference/architecture.md §3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def situ_glu(gate: Tensor, up: Tensor, gate_cap: float, up_cap: float) -> Tensor:
    """The capped product of `gate` and `up` (same shape), formed in fp32 at least and cast back."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(wide), up.to(wide)
    return (gate_cap * torch.tanh(g / gate_cap) * torch.sigmoid(g) * (up_cap * torch.tanh(u / up_cap))).to(gate.dtype)


class FeedForward(nn.Module):
    """A dense (or shared-expert) SiTU-GLU from `hidden` to `width` and back."""

    def __init__(self, hidden: int, width: int, gate_cap: float, up_cap: float) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)
        self.gate_cap, self.up_cap = gate_cap, up_cap

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(situ_glu(self.gate_proj(x), self.up_proj(x), self.gate_cap, self.up_cap))
