"""A whole stack of GQA layers with gated feed-forwards in one call, in bf16: decoding and short pieces of prompts.

    s <- s + W_o attend(rope(norm(W_q x)), rope(norm(W_k x)), W_v x),  x = norm(s);   s <- s + ffn(norm(s))

Sums and the running s are fp32; what products read (normed rows, queries, the gated product) is rounded to bf16, and so
are the keys and values that go into the cache. A token's result depends on its own row alone, to the last bit: not on
how many tokens run beside it, nor on the pieces that a prompt is cut into. Matrices may be packed in MXFP4, formed in
registers. The plain form is the layers' own forwards.

Shapes: M tokens, B rows, S slots, D model, H heads, G key-value heads, K head dim, W width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("decode_gqa", (torch.bfloat16,), gqa_stack="ppppppppp iiiiiiiii dd", linear="ppp iii")
BF16_PIECE, PACKED_PIECE = 32, 128  # what the inputs of a plain and of a packed matrix are a multiple of


class Packed(NamedTuple):
    """A matrix [O, I] in MXFP4: values [O, I/2] and scales [O, I/32], uint8."""

    values: Tensor
    scales: Tensor


Matrix = Tensor | Packed


class GQALayerWeights(NamedTuple):
    """One layer's. q [H K, D], k and v [G K, D], o [D, H K], gate and up [W, D], down [D, W]; the norms of queries and
    keys may be None."""

    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    before_mixer: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    before_feed_forward: Tensor


class GQACaches(NamedTuple):
    """Every layer's keys and values [B, S, G, K], all of one shape and strides."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]


def steps_gqa(x_MD: Tensor, layers: Sequence[GQALayerWeights], heads: tuple[int, int, int]) -> bool:
    """Whether `gqa_stack` runs for these tensors: bf16 on the CPU, widths that it can take, the compiled form built."""
    H, G, K = heads
    if x_MD.dtype != torch.bfloat16 or K % BF16_PIECE or H % G:
        return False
    plain: list[Tensor | None] = [x_MD]
    for layer in layers:
        for part in layer:
            if isinstance(part, Packed):
                if part.values.shape[1] * 2 % PACKED_PIECE or not part.values.is_cpu:
                    return False
                if not (part.values.is_contiguous() and part.scales.is_contiguous()):
                    return False
            else:
                if part is not None and part.shape[-1] % BF16_PIECE:
                    return False
                plain.append(part)
    return _native.runs(*plain)


def gqa_stack(
    x_MD: Tensor,
    layers: Sequence[GQALayerWeights],
    norm_D: Tensor,
    caches: GQACaches,
    row_M: Tensor,
    at_M: Tensor,
    rotary: tuple[Tensor, Tensor] | None,
    heads: tuple[int, int, int],
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """(normed, before the final norm), [M, D] bf16 each; the caches' slots `at_M` of rows `row_M` are written.

    Tokens of one row stand in order. `rotary`: cosines and sines [M, K/2] fp32; `heads`: H, G, K.
    """
    H, G, K = heads
    (M, D), keys = x_MD.shape, caches.keys[0]
    first = layers[0].gate
    W = (first.values if isinstance(first, Packed) else first).shape[0]
    out_MD, raw_MD = torch.empty_like(x_MD), torch.empty_like(x_MD)
    cos, sin = (None, None) if rotary is None else rotary
    sizes = (M, len(layers), D, H, G, K, W, keys.shape[1], keys.stride(0))
    parts = _pointers(layers, caches)
    _native("gqa_stack", out_MD, raw_MD, x_MD, parts, norm_D, row_M, at_M, cos, sin, *sizes, scale, eps)
    return out_MD, raw_MD


def _pointers(layers: Sequence[GQALayerWeights], caches: GQACaches) -> ctypes.Array[ctypes.c_void_p]:
    """Where everything lies, in the order in which the compiled form reads it."""
    found: list[int | None] = []
    for layer, keys, values in zip(layers, caches.keys, caches.values, strict=True):
        for matrix in layer[:7]:
            if isinstance(matrix, Packed):
                found += (matrix.values.data_ptr(), matrix.scales.data_ptr())
            else:
                assert isinstance(matrix, Tensor)
                assert matrix.is_contiguous()
                found += (matrix.data_ptr(), None)
        for norm in layer[7:]:
            found.append(None if norm is None else norm.data_ptr())
        found += (keys.data_ptr(), values.data_ptr())
    return (ctypes.c_void_p * len(found))(*found)


def multiplies_bf16(x: Tensor, weight_OI: Tensor) -> bool:
    """Whether `bf16_linear` runs for these tensors."""
    return x.shape[-1] % BF16_PIECE == 0 and _native.runs(x, weight_OI)


def bf16_linear(x: Tensor, weight_OI: Tensor) -> Tensor:
    """x [..., I] times the transpose of the matrix, summed and returned in fp32, [..., O]."""
    rows_MI = x.reshape(-1, x.shape[-1]).contiguous()
    (M, inner), O = rows_MI.shape, weight_OI.shape[0]
    y_MO = torch.empty(M, O)
    _native("linear", rows_MI, weight_OI, y_MO, M, inner, O)
    return y_MO.view(*x.shape[:-1], O)
