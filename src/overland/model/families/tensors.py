"""Which released tensors a model's parameters are made of: each a view into a parameter, for loading and saving alike.

Loading copies a file's tensor into the view, saving reads it out; the same list says which names, shapes and dtypes a
file must have. On the meta device nothing is allocated.
Shapes: E experts, Z expert input, I expert width. Source: reference/architecture.md §14; Transformers 5.24.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from overland.model.config import DecoderConfig
from overland.model.families.family import ExpertNames, Family

# What the released files keep in fp32 whatever the rest has: rounding would move decays and flip routes.
WIDE = ("A_log", "dt_bias", "o_norm.weight", "conv1d.weight", "e_score_correction_bias")
Header = dict[str, tuple[str, tuple[int, ...]]]
ITEM_BYTES = {"F32": 4, "BF16": 2, "U8": 1}
TEXT = "language_model."  # a release with a vision part puts this before every text tensor
VISION = ("vision_tower.", "mm_projector.")
PADDED = ("A_log",)  # the released files pad the heads with zeros


@dataclass(frozen=True)
class Piece:
    """One released tensor: its `name` and `shape`, and `view(parameter)`, where it lies in our parameter `ours`.

    A `copy` is written beside the tensor that it repeats, but need not be there and is not read.
    """

    name: str
    shape: tuple[int, ...]
    ours: str
    view: Callable[[Tensor], Tensor]
    copy: bool = False

    def read_from(self, parameter: Tensor) -> Tensor:
        """The released tensor, contiguous."""
        return self.view(parameter).reshape(self.shape).contiguous()

    def write_into(self, parameter: Tensor, released: Tensor) -> None:
        """Put the released tensor in its place. It must have `shape`; it is cast to the parameter's dtype."""
        view = self.view(parameter)
        view.copy_(released.reshape(view.shape))


def pieces(family: Family, config: DecoderConfig, state: Mapping[str, Tensor]) -> Iterator[Piece]:
    """All released tensors of a model whose state dict (on any device) is `state`, in its order."""
    for piece in _text_pieces(family, config, {n: v for n, v in state.items() if not n.startswith(VISION)}):
        yield replace(piece, name=TEXT + piece.name) if config.vision is not None else piece
    for ours, value in state.items():
        if ours.startswith(VISION):  # called alike
            yield Piece(ours, tuple(value.shape), ours, lambda p: p)


def _text_pieces(family: Family, config: DecoderConfig, state: Mapping[str, Tensor]) -> Iterator[Piece]:
    for ours, value in state.items():
        if ours == "lm_head.weight" and config.tie_word_embeddings:
            continue
        placed = _MTP.sub(lambda m: _ahead(m, config.num_hidden_layers), ours)
        if ".experts." in ours:
            yield from _expert_pieces(family.experts, ours, placed, value)
            continue
        name = family.their_name(placed)
        if ours.endswith("A_log") and not family.flat_decay:
            yield Piece(name, (1, 1, *value.shape, 1), ours, lambda p: p[None, None, :, None])
        else:
            yield Piece(name, tuple(value.shape), ours, lambda p: p)

    for block in range(config.mtp_layers):
        for part, ours in (("embed_tokens", "model.embed_tokens.weight"), ("shared_head.head", "lm_head.weight")):
            if ours in state:
                name = f"model.layers.{config.num_hidden_layers + block}.{part}.weight"
                yield Piece(name, tuple(state[ours].shape), ours, lambda p: p, copy=True)


_MTP = re.compile(r"^model\.mtp\.(?P<block>\d+)\.(?P<part>block\.|norm\.)?")


def _ahead(match: re.Match[str], layers: int) -> str:
    """Prediction blocks are numbered on behind the layers."""
    part = {"block.": "", "norm.": "shared_head.norm.", None: ""}[match["part"]]
    return f"model.layers.{layers + int(match['block'])}.{part}"


def _expert_pieces(names: ExpertNames, ours: str, placed: str, value: Tensor) -> Iterator[Piece]:
    prefix, _, part = placed.rpartition(".")
    base = prefix.removesuffix("block_sparse_moe.experts") + names.base
    if names.fused:
        yield _fused(names, base, ours, part, value)
        return
    E = value.shape[0]
    if part == "gate_up":
        Z, I = value.shape[1], value.shape[2] // 2
        for e in range(E):
            yield Piece(f"{base}.{e}.{names.gate}.weight", (I, Z), ours, _matrix(e, 0, I))
            yield Piece(f"{base}.{e}.{names.up}.weight", (I, Z), ours, _matrix(e, I, 2 * I))
    elif part == "down":
        I, Z = value.shape[1:]
        for e in range(E):
            yield Piece(f"{base}.{e}.{names.down}.weight", (Z, I), ours, _matrix(e, 0, Z))
    else:
        raise ValueError(f"experts of this family have no {part}")


def _matrix(expert: int, start: int, stop: int) -> Callable[[Tensor], Tensor]:
    """Columns start..stop of one expert's [in, out], as the released [out, in]."""
    return lambda p: p[expert, :, start:stop].T


def _fused(names: ExpertNames, base: str, ours: str, part: str, value: Tensor) -> Piece:
    """Stacked tensors; gate and up stand in turn, where ours has them side by side."""
    name = {
        "gate_up": names.gate,
        "gate_up_bias": f"{names.gate}_bias",
        "down": names.down,
        "down_bias": f"{names.down}_bias",
    }[part]
    if part.startswith("gate_up"):
        half = value.shape[-1] // 2
        return Piece(
            f"{base}.{name}",
            tuple(value.shape),
            ours,
            lambda p: p.view(*p.shape[:-1], 2, half).transpose(-1, -2),
        )
    return Piece(f"{base}.{name}", tuple(value.shape), ours, lambda p: p)


def released_dtype(name: str) -> str:
    """What type the releases store a tensor in that is not quantised: "F32" or "BF16"."""
    return "F32" if name.endswith(WIDE) else "BF16"


def released_header(family: Family, config: DecoderConfig, state: Mapping[str, Tensor], mxfp4: bool = False) -> Header:
    """Name -> (type, shape) of all tensors in a released checkpoint of this model; `mxfp4` packs the routed experts."""
    header: Header = {}
    for piece in pieces(family, config, state):
        if mxfp4 and ".experts." in piece.name:
            out, width = piece.shape
            header[f"{piece.name}_packed"] = ("U8", (out, width // 2))
            header[f"{piece.name}_scale"] = ("U8", (out, width // 32))
        else:
            header[piece.name] = (released_dtype(piece.name), piece.shape)
    return header


def header_bytes(header: Header) -> int:
    """Bytes of all tensors together."""
    return sum(ITEM_BYTES[dtype] * math.prod(shape) for dtype, shape in header.values())
