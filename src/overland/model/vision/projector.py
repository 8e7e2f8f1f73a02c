"""The projector (patchmergerv2): the patches of a square, side by side, to one row of the decoder's width.

    y = norm( W_2 gelu( W_0 [x_1 | .. | x_S] ) )

Shapes: M merged squares, S patches a square, D vision width. Source: reference/architecture.md §10.7.
"""

from __future__ import annotations

from torch import Tensor, nn

from overland.model.config import VisionConfig
from overland.model.norm import RMSNorm


class Projector(nn.Module):
    """[M, S, D] to [M, the decoder's width]."""

    def __init__(self, vision: VisionConfig, text_width: int) -> None:
        super().__init__()
        merged = vision.merge[0] * vision.merge[1] * vision.width
        self.proj = nn.Sequential(
            nn.Linear(merged, merged, bias=False), nn.GELU(), nn.Linear(merged, text_width, bias=False)
        )
        self.post_norm = RMSNorm(text_width, vision.projector_eps)

    def forward(self, x_MSD: Tensor) -> Tensor:
        return self.post_norm(self.proj(x_MSD.flatten(1)))
