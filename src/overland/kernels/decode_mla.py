"""One decoding step of an MLA sublayer in one call: what `overland.model.mla` computes for one token a row, fused.

    r = norm(W_qa x);  [q_n | q_p] = W_qb r;  [c | k_p] = W_kva x;  the cache gets e = [norm(c) | k_p]
    q' = [W_kvb,k^T q_n | q_p];  m = softmax(q' . e scale) e[:L];  W_o( W_kvb,v m * sigmoid(W_g x) )

x is what the sublayer reads of the residual (residual.py), into which the output goes. Shapes: B rows, S slots, D
model, H heads, F nope dim, R rope dim, V value dim, L KV latent, Q query latent. The plain form is the layer's own
forward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled
from overland.kernels.held import Held
from overland.kernels.residual import Reading

_native = Compiled("decode_mla", mla_step="ppppppp iiiiiiiiiiiii dddd")


class MLAWeights(NamedTuple):
    """In the order in which the compiled form reads them. Without a query latent: q [H (F+R), D], None, None."""

    q: Tensor
    q_norm: Tensor | None
    q_b: Tensor | None
    kv_a: Tensor
    kv_norm: Tensor
    kv_b: Tensor
    gate: Tensor | None
    o: Tensor


def steps_mla(reading: Reading, held: Held, weights: MLAWeights, latents_BSX: Tensor) -> bool:
    """Whether `mla_step` runs for these tensors: all of one dtype, on the CPU, and the compiled form built."""
    if not held.takes(_native, weights) or not reading.fits(held.dtype):
        return False
    rows_whole = latents_BSX.stride()[1:] == (latents_BSX.shape[2], 1)
    return type(latents_BSX) is Tensor and latents_BSX.dtype is held.dtype and rows_whole


def mla_step(
    reading: Reading,
    held: Held,
    weights: MLAWeights,
    latents_BSX: Tensor,
    seen_B: Tensor,
    rotary: tuple[Tensor, Tensor] | None,
    interleaved: bool,
    dims: tuple[int, int, int, int],
    scale: float,
    eps: float,
) -> Tensor:
    """The residual after the sublayer [B, 1, D]; each row's new latent is written into slot seen_B of `latents_BSX`,
    which must exist.

    `rotary`: cosines and sines [B, 1, R/2] of the new tokens, or None; `dims`: H, F, R, V; `eps`: the latents' norms'.
    """
    s_BTD, (_, S, X), (H, F, R, V) = reading.sources[-1], latents_BSX.shape, dims
    B, D = reading.tokens, s_BTD.shape[-1]
    Q = 0 if weights.q_b is None else weights.q.shape[0]
    y_BTD, seen_B = torch.empty_like(s_BTD), seen_B.contiguous()
    cos, sin = (None, None) if rotary is None else (rotary[0].contiguous(), rotary[1].contiguous())
    assert cos is None or (cos.shape[0] == B and cos.dtype is held.dtype), "one angle a row, in the weights' dtype"
    angles = [None if x is None else x.data_ptr() for x in (cos, sin)]
    places = (y_BTD.data_ptr(), latents_BSX.data_ptr(), reading.pointers(), held.pointers, *angles, seen_B.data_ptr())
    sizes = (len(reading.sources), reading.keeps, B, D, H, F, R, V, X - R, Q, S, latents_BSX.stride(0), interleaved)
    numbers = (scale, eps, reading.eps, reading.depth_eps)
    _native.function("mla_step", held.dtype)(*places, *sizes, *numbers)
    return y_BTD
