"""Where a patch lies: a learned grid that is stretched to the image, a fixed wave over frames, and a 2-D rotation.

    added once      bilinear(weight, h x w)[row, column] + [sin(f w_i) | cos(f w_i)],  w_i = 10000^(-2i/D)   (f: frame)
    in every block  pair 2i turns by column * f_i, pair 2i + 1 by row * f_i,           f_i = 10000^(-4i/K)

The wave is added only where there is more than one frame; frames do not turn.
Shapes: N patches, D vision width, H heads, K head dim. Source: reference/architecture.md §10.2, §10.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland.model.config import VisionConfig
from overland.model.vision.images import Grid

BASE = 10000.0


class GridPositions(nn.Module):
    """A learned row for every cell of a grid, read out for images of any size."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vision.grid_height, vision.grid_width, vision.width))

    def forward(self, grids: Sequence[Grid]) -> Tensor:
        """[N, D], in fp32 at least."""
        return torch.cat([self._of(grid) for grid in grids])

    def _of(self, grid: Grid) -> Tensor:
        t, h, w = grid
        cells = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        if cells.shape[:2] != (h, w):
            stretched = F.interpolate(cells.permute(2, 0, 1)[None], size=(h, w), mode="bilinear", align_corners=False)
            cells = stretched[0].permute(1, 2, 0)
        if t == 1:
            return cells.flatten(0, 1)
        return (cells + frame_wave(t, cells.shape[-1], cells)[:, None, None]).flatten(0, 2)


def frame_wave(frames: int, width: int, like: Tensor) -> Tensor:
    """[frames, width]: sines, then cosines."""
    frequency = BASE ** (-torch.arange(width // 2, device=like.device).to(like.dtype) / (width // 2))
    angle = torch.arange(frames, device=like.device).to(like.dtype)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class Rotary2D(NamedTuple):
    """Cosines and sines of every patch's angles, [N, 1, K/2] each, in fp32 at least."""

    cos: Tensor
    sin: Tensor


def rotary_2d(grids: Sequence[Grid], head_dim: int, like: Tensor) -> Rotary2D:
    """The angles of all patches, for heads of `head_dim`; type (fp32 at least) and device as of `like`."""
    wide = torch.promote_types(like.dtype, torch.float32)
    frequency = BASE ** (-torch.arange(0, head_dim, 4, device=like.device).to(wide) / head_dim)
    angles = []
    for t, h, w in grids:
        row, column = torch.arange(h, device=like.device), torch.arange(w, device=like.device)
        place = torch.stack([column.expand(h, w), row[:, None].expand(h, w)], dim=-1).to(wide)  # x first
        angles.append((place[..., None, :] * frequency[:, None]).reshape(h * w, -1).repeat(t, 1))
    angle = torch.cat(angles)[:, None]
    return Rotary2D(angle.cos(), angle.sin())


def rotate_pairs(x_NHK: Tensor, table: Rotary2D) -> Tensor:
    """Turn each pair (2i, 2i + 1) of the last dim; formed in the table's type, returned in that of `x_NHK`."""
    a, b = x_NHK.to(table.cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * table.cos - b * table.sin, a * table.sin + b * table.cos], dim=-1)
    return turned.flatten(-2).to(x_NHK.dtype)
