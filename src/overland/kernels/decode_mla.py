"""One decoding step of an MLA mixer in one call: what `overland.model.mla` computes for one token a row, fused.

    r = norm(W_qa x);  [q_n | q_p] = W_qb r;  [c | k_p] = W_kva x;  the cache gets e = [norm(c) | k_p]
    q' = [W_kvb,k^T q_n | q_p];  m = softmax(q' . e scale) e[:L];  y = W_o( W_kvb,v m * sigmoid(W_g x) )

Shapes: B rows, S slots, D model, H heads, F nope dim, R rope dim, V value dim, L KV latent, Q query latent. The plain
form is the mixer's own forward.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("decode_mla", mla_step="ppppp iiiiiiiiiii dd")


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


def steps_mla(x_BD: Tensor, weights: MLAWeights, latents_BSX: Tensor) -> bool:
    """Whether `mla_step` runs for these tensors: all of one dtype, on the CPU, and the compiled form built."""
    return latents_BSX[0].is_contiguous() and _native.runs(x_BD, latents_BSX, *weights)


def mla_step(
    x_BD: Tensor,
    weights: MLAWeights,
    latents_BSX: Tensor,
    seen_B: Tensor,
    rotary: tuple[Tensor, Tensor] | None,
    interleaved: bool,
    dims: tuple[int, int, int, int],
    scale: float,
    eps: float,
) -> Tensor:
    """The mixer's output [B, D]; each row's new latent is written into slot seen_B of `latents_BSX`, which must exist.

    `rotary`: cosines and sines [B, R/2] of the new tokens, or None; `dims`: H, F, R, V.
    """
    x_BD = x_BD.contiguous()
    y_BD = x_BD.new_empty(x_BD.shape)
    (B, D), (_, S, X) = x_BD.shape, latents_BSX.shape
    H, F, R, V = dims
    Q = 0 if weights.q_b is None else weights.q.shape[0]
    angles = (None, None) if rotary is None else (rotary[0].contiguous(), rotary[1].contiguous())
    sizes = (B, D, H, F, R, V, X - R, Q, S, latents_BSX.stride(0), interleaved, scale, eps)
    _native("mla_step", y_BD, latents_BSX[0], x_BD, (*weights, *angles), seen_B.contiguous(), *sizes)
    return y_BD
