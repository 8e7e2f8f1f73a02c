"""SiTU-GLU: a gated feed-forward whose gate and value are softly capped.

    ffn(x) = W_down( b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2) ),  g = W_gate x, u = W_up x

Source: Kimi K3 report; reference/architecture.md §3.
"""

from __future__ import annotations

from torch import Tensor, nn

from overland import kernels


class FeedForward(nn.Module):
    """A dense (or shared-expert) SiTU-GLU from `hidden` to `width` and back."""

    def __init__(self, hidden: int, width: int, gate_cap: float, up_cap: float) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)
        self.gate_cap, self.up_cap = gate_cap, up_cap

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(kernels.situ_glu(self.gate_proj(x), self.up_proj(x), self.gate_cap, self.up_cap))
