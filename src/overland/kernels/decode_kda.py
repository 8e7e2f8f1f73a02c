"""One decoding step of a KDA sublayer in one call: what `overland.model.kda` computes for one token a row, fused.

    q, k, v = SiLU(conv(W x));  a = exp(log decay(W_fb W_fa x));  beta = sigmoid(W_b x)
    S <- a S;  S <- S + k (beta (v - S^T k))^T;  W_o( norm(S^T q) * sigmoid(gate(x)) )

x is what the sublayer reads of the residual (residual.py), into which the output goes. Shapes: B rows, D model, H
heads, K head dim, P = H K, W taps. The plain form is the layer's own forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled
from overland.kernels.held import Held
from overland.kernels.residual import Reading

_native = Compiled("decode_kda", kda_step="ppppp iiiiiii dddd")
_WIDEST = 128  # channels of a head that the compiled form holds


class KDAWeights(NamedTuple):
    """In the order in which the compiled form reads them: q, k, v [P, D] and their taps [P, W] (or [P, 1, W]) first.

    A gate of full rank has g [P, D] and no g_b.
    """

    qkv: Sequence[Tensor]
    taps: Sequence[Tensor]
    f_a: Tensor
    f_b: Tensor
    b: Tensor
    A_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    o: Tensor
    g: Tensor
    g_b: Tensor | None

    def flat(self) -> tuple[Tensor | None, ...]:
        """One by one."""
        return (*self.qkv, *self.taps, *self[2:])


def steps_kda(reading: Reading, held: Held, weights: KDAWeights, tail_BWC: Tensor, state_BHKV: Tensor) -> bool:
    """Whether `kda_step` runs for these tensors: all of one dtype, on the CPU, and the compiled form built."""
    if state_BHKV.shape[-1] > _WIDEST or not held.takes(_native, weights.flat()) or not reading.fits(held.dtype):
        return False
    return all(type(x) is Tensor and x.dtype is held.dtype and x.is_contiguous() for x in (tail_BWC, state_BHKV))


def kda_step(
    reading: Reading, held: Held, tail_BWC: Tensor, state_BHKV: Tensor, bound: float | None, eps: float
) -> Tensor:
    """The residual after the sublayer [B, 1, D]; the tail [B, W-1, 3P] and the state are advanced in place.

    `eps`: the heads' norm's.
    """
    s_BTD, (_, H, K, _) = reading.sources[-1], state_BHKV.shape
    y_BTD = torch.empty_like(s_BTD)
    sizes = (len(reading.sources), reading.keeps, reading.tokens, s_BTD.shape[-1], H, K, tail_BWC.shape[1] + 1)
    places = (y_BTD.data_ptr(), tail_BWC.data_ptr(), state_BHKV.data_ptr(), reading.pointers(), held.pointers)
    numbers = (bound or 0.0, eps, reading.eps, reading.depth_eps)
    _native.function("kda_step", held.dtype)(*places, *sizes, *numbers)
    return y_BTD
