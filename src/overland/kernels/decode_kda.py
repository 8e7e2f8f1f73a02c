"""One decoding step of a KDA mixer in one call: what `overland.model.kda` computes for one token a row, fused.

    q, k, v = SiLU(conv(W x));  a = exp(log decay(W_fb W_fa x));  beta = sigmoid(W_b x)
    S <- a S;  S <- S + k (beta (v - S^T k))^T;  y = W_o( norm(S^T q) * sigmoid(gate(x)) )

Shapes: B rows, D model, H heads, K head dim, P = H K, W taps. The plain form is the mixer's own forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("decode_kda", kda_step="ppppp iiiii dd")
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


def steps_kda(x: Tensor, weights: KDAWeights, tail_BWC: Tensor, state_BHKV: Tensor) -> bool:
    """Whether `kda_step` runs for these tensors: all of one dtype, on the CPU, and the compiled form built."""
    return state_BHKV.shape[-1] <= _WIDEST and _native.runs(x, tail_BWC, state_BHKV, *weights.flat())


def kda_step(
    x_BD: Tensor, weights: KDAWeights, tail_BWC: Tensor, state_BHKV: Tensor, bound: float | None, eps: float
) -> Tensor:
    """The mixer's output [B, D]; the tail [B, W-1, 3P] and the state are advanced in place."""
    x_BD = x_BD.contiguous()
    y_BD = x_BD.new_empty(x_BD.shape)
    (B, D), (_, H, K, _) = x_BD.shape, state_BHKV.shape
    sizes = (B, D, H, K, tail_BWC.shape[1] + 1, bound or 0.0, eps)
    _native("kda_step", y_BD, tail_BWC, state_BHKV, x_BD, weights.flat(), *sizes)
    return y_BD
