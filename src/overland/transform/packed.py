"""A model whose MXFP4 matrices stay packed: 4.25 bits a weight in memory, unpacked a block or an expert at a time.

`load_packed` reads a quantised folder, of K3's or gpt-oss's layout, straight into packed modules: no matrix that a file
holds packed is ever whole in another form. `pack` does the same to a model in memory. Inference only.

Shapes: E experts, I in, O out; packed [E, O, I/2], scales [E, O, I/32].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from overland import kernels
from overland.errors import UsageError
from overland.model import Decoder, load_model
from overland.model.families import Piece
from overland.model.moe import Experts
from overland.model.packed import Pair
from overland.transform.targets import EXPERTS, chosen_linears, replace_module

M = TypeVar("M", bound=nn.Module)


class PackedMatrix(nn.Module):
    """One matrix or a stack of them: `packed` [..., O, I/2] and `scales` [..., O, I/32], uint8 buffers.

    It stands for a parameter [O, I] or, `turned`, for one [E, I, O] as the experts' are.
    """

    packed: Tensor
    scales: Tensor

    def __init__(self, packed: Tensor, scales: Tensor, turned: bool) -> None:
        super().__init__()
        self.turned = turned
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)

    @classmethod
    def for_parameter(cls, shape: tuple[int, ...], turned: bool) -> PackedMatrix:
        """Room for what stands for a parameter of this shape."""
        *rows, width = (shape[0], shape[2], shape[1]) if turned else shape
        packed, scales = (torch.zeros(*rows, width // size, dtype=torch.uint8) for size in (2, kernels.MXFP4_BLOCK))
        return cls(packed, scales, turned)

    def take_in(self, piece: Piece, pair: Pair) -> None:
        """Put the released part `piece` in its place."""
        for buffer, part in ((self.packed, pair.packed), (self.scales, pair.scales)):
            view = piece.view(buffer.mT if self.turned else buffer)
            view.copy_((part.mT if pair.stacked else part).reshape(view.shape))

    def pair(self, piece: Piece, stacked: bool) -> Pair:
        """The released pair of part `piece`."""
        parts = []
        for buffer in (self.packed, self.scales):
            view = piece.view(buffer.mT if self.turned else buffer)
            parts.append(view.flatten(2).mT.contiguous() if stacked else view.contiguous())
        return Pair(parts[0], parts[1], stacked)


def packed_product(x_MI: Tensor, matrices: PackedMatrix, counts_E: Tensor) -> Tensor:
    """The experts' product with packed matrices."""
    return kernels.mxfp4_grouped_product(x_MI, matrices.packed, matrices.scales, counts_E)


class PackedLinear(nn.Module):
    """A Linear whose weight is packed. `weight` decodes it, for those who read it as a matrix."""

    def __init__(self, matrix: PackedMatrix, bias: nn.Parameter | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix, self.bias, self.dtype = matrix, bias, dtype
        self.out_features, self.in_features = matrix.packed.shape[0], 2 * matrix.packed.shape[1]

    @property
    def weight(self) -> Tensor:
        return kernels.mxfp4_decode(self.matrix.packed, self.matrix.scales, self.dtype)

    def step_matrix(self) -> kernels.Packed | None:
        """What a fused decoding step reads instead of calling this module."""
        held = self._modules["matrix"]
        assert held is not None
        packed, scales = held._buffers["packed"], held._buffers["scales"]
        return None if self.bias is not None or packed is None or scales is None else kernels.Packed(packed, scales)

    def forward(self, x: Tensor) -> Tensor:
        y = kernels.mxfp4_product(x, self.matrix.packed, self.matrix.scales)
        return y if self.bias is None else y + self.bias


def load_packed(directory: str | os.PathLike[str], dtype: torch.dtype | None = None) -> Decoder:
    """The model of a quantised folder, its packed matrices packed, the rest in `dtype` (fp32 where None).

    Raises UsageError for a folder in which nothing is packed; broken files as in load_model.
    """
    kept: list[str] = []

    def keep(model: Decoder, pairs: Mapping[str, Piece]) -> Callable[[Piece, Pair], None]:
        holders = {name: _holder(model, name, dtype or torch.float32) for name in {p.ours for p in pairs.values()}}
        kept.extend(holders)
        return lambda piece, pair: holders[piece.ours].take_in(piece, pair)

    model = load_model(directory, dtype, keep=keep)
    if not kept:
        raise UsageError(f"model = '{directory}' holds nothing in MXFP4; overland quantize makes such a folder")
    return model.eval()


def pack(model: M, targets: Sequence[str] = (EXPERTS,), rule: str = "even") -> M:
    """Pack what `targets` name (experts, or Linears as for LoRA) in place; each matrix is freed before the next.

    Raises UsageError for an unknown rule or target and widths that 32 does not divide.
    """
    linears = chosen_linears(model, [t for t in targets if t != EXPERTS], "targets")
    for path, linear in linears.items():
        matrix = PackedMatrix(*kernels.mxfp4_encode(linear.weight, rule), turned=False)
        replace_module(model, path, PackedLinear(matrix, linear.bias, linear.weight.dtype))
    for module in list(model.modules()) if EXPERTS in targets else ():
        if isinstance(module, Experts):
            for name in ("gate_up", "down"):
                weight = getattr(module, name)
                delattr(module, name)
                setattr(module, name, PackedMatrix(*kernels.mxfp4_encode(weight.mT, rule), turned=True))
            module.product = packed_product  # type: ignore[assignment]
    return model


def packed_bytes(model: nn.Module) -> int:
    """Bytes of all packed matrices of `model`."""
    matrices = [m for m in model.modules() if isinstance(m, PackedMatrix)]
    return sum(m.packed.nbytes + m.scales.nbytes for m in matrices)


def _holder(model: Decoder, ours: str, dtype: torch.dtype) -> PackedMatrix:
    """An empty packed matrix in the place of parameter `ours` of a model without memory."""
    path, _, leaf = ours.rpartition(".")
    module = model.get_submodule(path)
    turned = isinstance(module, Experts)
    matrix = PackedMatrix.for_parameter(tuple(getattr(module, leaf).shape), turned)
    if isinstance(module, Experts):
        delattr(module, leaf)
        setattr(module, leaf, matrix)
        module.product = packed_product  # type: ignore[assignment]
    else:
        assert isinstance(module, nn.Linear)
        replace_module(model, path, PackedLinear(matrix, module.bias, dtype))
    return matrix
