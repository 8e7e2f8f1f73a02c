"""MXFP4 in released files: a matrix is a pair of uint8 tensors, in one of two layouts.

    K3 (compressed-tensors)   X.weight_packed [out, in/2]          X.weight_scale [out, in/32]
    gpt-oss                   X_blocks [E, out, in/32, 16]         X_scales [E, out, in/32]

The same bytes in the same order: gpt-oss stacks the experts, and its plain tensor X is [E, in, out].
Source: reference/architecture.md §12.4, §12.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from overland import kernels
from overland.errors import BrokenFileError
from overland.model.decoder import Decoder
from overland.model.families import Piece

K3_ENDS = ("_packed", "_scale")
GPT_OSS_ENDS = ("_blocks", "_scales")


class HeaderLike(Protocol):
    """What a file's header says of one tensor."""

    @property
    def file(self) -> Path: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class Pair:
    """A released matrix that is packed: `packed` [..., out, in/2] (gpt-oss's flattened), `scales` [..., out, in/32]."""

    packed: Tensor
    scales: Tensor
    stacked: bool
    """gpt-oss's layout: experts stacked, and the plain tensor stands the other way round."""

    def decoded(self) -> Tensor:
        """The plain released tensor (fp32): [out, in], or stacked [E, in, out]."""
        values = kernels.mxfp4_decode(self.packed, self.scales)
        return values.mT if self.stacked else values

    def released(self, name: str) -> dict[str, Tensor]:
        """The two tensors of matrix `name` as files have them."""
        ends = GPT_OSS_ENDS if self.stacked else K3_ENDS
        packed = self.packed.unflatten(-1, (-1, 16)) if self.stacked else self.packed
        return {name + ends[0]: packed.contiguous(), name + ends[1]: self.scales.contiguous()}

    @classmethod
    def of(cls, weight: Tensor, rule: str, stacked: bool) -> Pair:
        """A plain released tensor packed under the scale rule."""
        return cls(*kernels.mxfp4_encode(weight.mT if stacked else weight, rule), stacked)


Keep = Callable[[Decoder, Mapping[str, Piece]], Callable[[Piece, Pair], None]]
"""How pairs stay packed in memory: given a model without memory and the pieces that files hold packed, it puts its own
modules in their place and returns what takes each pair in."""


def matrix_of(name: str) -> str | None:
    """The matrix that half a pair belongs to, or None for a plain tensor."""
    for end in K3_ENDS:
        if name.endswith(f".weight{end}"):
            return name.removesuffix(end)
    for end in GPT_OSS_ENDS:
        if name.endswith(f"_proj{end}"):
            return name.removesuffix(end)
    return None


class Halves:
    """Brings the halves of pairs together as they come out of files."""

    def __init__(self) -> None:
        self._waiting: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor) -> Pair | None:
        """The pair that `name` (half of a checked one) completes, or None while its partner is to come."""
        matrix = matrix_of(name)
        assert matrix is not None
        self._waiting[name] = value
        stacked = name.endswith(GPT_OSS_ENDS)
        first, second = (matrix + end for end in (GPT_OSS_ENDS if stacked else K3_ENDS))
        if first not in self._waiting or second not in self._waiting:
            return None
        packed, scales = self._waiting.pop(first), self._waiting.pop(second)
        return Pair(packed.flatten(-2) if stacked else packed, scales, stacked)


def check_pairs(found: Mapping[str, HeaderLike]) -> dict[str, tuple[int, ...]]:
    """Shape of the plain tensor of every pair, by its name. Raises BrokenFileError naming a pair that does not fit."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, header in found.items():
        matrix = matrix_of(name)
        if matrix is None or matrix in shapes:
            continue
        stacked = name.endswith(GPT_OSS_ENDS)
        ends = GPT_OSS_ENDS if stacked else K3_ENDS
        packed, scales = (found.get(matrix + end) for end in ends)
        if packed is None or scales is None:
            both = " and ".join(f"'{matrix}{end}'" for end in ends)
            raise BrokenFileError(f"{header.file}: '{name}' has no partner; {both} go together")
        fits = (
            packed.shape == (*scales.shape, 16) and len(scales.shape) == 3
            if stacked
            else len(scales.shape) == 2 and packed.shape == (scales.shape[0], 16 * scales.shape[1])
        )
        if not fits or {packed.dtype, scales.dtype} != {"U8"}:
            raise BrokenFileError(
                f"{packed.file}: '{matrix}{ends[0]}' {packed.dtype} {list(packed.shape)} and "
                f"'{ends[1]}' {scales.dtype} {list(scales.shape)} are not MXFP4; "
                "a row of K weights is K/2 bytes and K/32 scale bytes"
            )
        *before, out, groups = scales.shape
        width = groups * kernels.MXFP4_BLOCK
        shapes[matrix] = (*before, width, out) if stacked else (out, width)
    return shapes


def finite(pair: Pair) -> bool:
    """Whether all values are numbers: scale byte 255 is NaN, and above 252 the largest codes overflow fp32."""
    return not bool((pair.scales > 252).any()) or bool(torch.isfinite(pair.decoded()).all())
