"""The vision tower (MoonViT-V2): patches of images of any size to features of merged squares of patches.

    x = conv_p(patch) + position;   blocks;   norm;   mean over frames;   squares of patches side by side

Shapes: N patches of all images, M merged squares, D vision width, p pixels a patch side, S patches a square.
Source: Kimi K3 report; reference/architecture.md §10. The report calls attention factorised over space and time; the
released code attends jointly, and so does this (for a single frame they are the same).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from overland.model.config import VisionConfig
from overland.model.norm import RMSNorm
from overland.model.vision.block import VisionBlock
from overland.model.vision.images import Grid, Images
from overland.model.vision.positions import GridPositions, rotary_2d


class PatchEmbed(nn.Module):
    """One linear map a patch, and where the patch lies."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, vision.width, kernel_size=vision.patch, stride=vision.patch, bias=False)
        self.pos_emb = GridPositions(vision)

    def forward(self, images: Images) -> Tensor:
        """[N, D]"""
        x_ND = self.proj(images.patches.to(self.proj.weight.dtype)).flatten(1)
        return x_ND + self.pos_emb(images.grids).to(x_ND.dtype)


class Encoder(nn.Module):
    """The stack of blocks and the norm behind it."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.K = vision.qkv_width // vision.heads
        self.blocks = nn.ModuleList(VisionBlock(vision) for _ in range(vision.layers))
        self.final_layernorm = RMSNorm(vision.width, vision.norm_eps)

    def forward(self, x_ND: Tensor, grids: Sequence[Grid]) -> Tensor:
        rotary = rotary_2d(grids, self.K, x_ND)
        lengths = [t * h * w for t, h, w in grids]
        for block in self.blocks:
            x_ND = block(x_ND, rotary, lengths)
        return self.final_layernorm(x_ND)


class VisionTower(nn.Module):
    """`forward(images)` returns [M, S, D]: the S patches of every square, all images one behind the other."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.vision = vision
        self.patch_embed = PatchEmbed(vision)
        self.encoder = Encoder(vision)

    def forward(self, images: Images) -> Tensor:
        """Raises UsageError where the patches and grids do not fit each other or this tower."""
        images.check(self.vision)
        return merge_squares(self.encoder(self.patch_embed(images), images.grids), images.grids, self.vision.merge)


def merge_squares(x_ND: Tensor, grids: Sequence[Grid], merge: tuple[int, int]) -> Tensor:
    """Average over frames and gather the patches of each square, row by row: [M, S, D]."""
    (rows, columns), out = merge, []
    for x, (t, h, w) in zip(x_ND.split([t * h * w for t, h, w in grids]), grids, strict=True):
        squares = x.view(t, h // rows, rows, w // columns, columns, -1).mean(0)
        out.append(squares.transpose(1, 2).flatten(0, 1).flatten(1, 2))
    return torch.cat(out)
