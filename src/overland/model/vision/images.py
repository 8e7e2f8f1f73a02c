"""Images as a model takes them in: the patches of all images one behind the other, and the grid of each.

Shapes: N patches of all images, p pixels a patch side; an image has t frames of h rows and w columns of patches.
Source: reference/architecture.md §10.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overland.errors import UsageError
from overland.model.config import VisionConfig

Grid = tuple[int, int, int]
"""Frames, rows and columns of an image's patches."""


@dataclass(frozen=True)
class Images:
    """`patches` [N, 3, p, p] floating point, normalised, frame by frame, row by row; `grids` in the same order."""

    patches: Tensor
    grids: tuple[Grid, ...]

    @classmethod
    def join(cls, images: Sequence[Images]) -> Images:
        """Several in one, in order; their patches must be of one size."""
        return cls(torch.cat([i.patches for i in images]), tuple(grid for i in images for grid in i.grids))

    def check(self, vision: VisionConfig) -> None:
        """Raises UsageError naming the first grid or shape that a tower of this config cannot take."""
        if not self.grids:
            raise UsageError("images: holds no image; valid: one or more, or images=None")
        rows, columns = vision.merge
        for number, (t, h, w) in enumerate(self.grids):
            if h < 1 or w < 1 or h % rows or w % columns:
                raise UsageError(
                    f"images[{number}] has a grid of {h} x {w} patches; valid: positive multiples of {rows} x {columns}"
                )
            if not 1 <= t <= vision.frames:
                raise UsageError(f"images[{number}] has {t} frames; valid: 1 to {vision.frames}")
        wanted = (sum(t * h * w for t, h, w in self.grids), 3, vision.patch, vision.patch)
        if tuple(self.patches.shape) != wanted:
            raise UsageError(
                f"images: patches of shape {list(self.patches.shape)}; the grids ask for {list(wanted)} "
                "[patches, channels, rows, columns]"
            )
        if not self.patches.is_floating_point():
            raise UsageError(f"images: patches of type {self.patches.dtype}; valid: floating point, normalised")


def token_counts(grids: Sequence[Grid], merge: tuple[int, int]) -> list[int]:
    """How many positions of the decoder each image takes: its frames are averaged, its patches merged in squares."""
    return [h * w // (merge[0] * merge[1]) for _, h, w in grids]
