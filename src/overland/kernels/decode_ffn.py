"""The feed-forwards of one decoding step in one call each: what `overland.model.moe` and `.feed_forward` compute.

    dense     y = W_down( gated(W_gate x, W_up x) )
    experts   s = sigmoid(W_r x);  top-k of s + bias;  u = sum_j p_j FFN_j(W_z x);  y = W_y norm(u) + shared(x)

Shapes: N tokens, D model, E experts, k experts a token, Z latent, I expert width, S width of the shared ones. The plain
forms are the modules' own forwards. Caps are SiTU's; both 0 stand for SwiGLU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("decode_ffn", dense_step="ppp iii dd", experts_step="pppppppp iiiiiiii dddd")
Caps = tuple[float, float]


class GLUWeights(NamedTuple):
    """gate, up [W, D] and down [D, W]."""

    gate: Tensor
    up: Tensor
    down: Tensor


class ExpertsWeights(NamedTuple):
    """In the order in which the compiled form reads them; the latent's three or the shared experts' may be None."""

    router: Tensor
    bias: Tensor
    gate_up: Tensor
    down: Tensor
    latent_down: Tensor | None
    latent_norm: Tensor | None
    latent_up: Tensor | None
    shared_gate: Tensor | None
    shared_up: Tensor | None
    shared_down: Tensor | None


def steps_ffn(x_ND: Tensor, weights: GLUWeights | ExpertsWeights) -> bool:
    """Whether `dense_step` or `experts_step` runs for these tensors: one dtype, on the CPU, the compiled form built."""
    return _native.runs(x_ND, *weights)


def dense_step(x_ND: Tensor, weights: GLUWeights, caps: Caps) -> Tensor:
    """The feed-forward's output [N, D]."""
    x_ND = x_ND.contiguous()
    y_ND = x_ND.new_empty(x_ND.shape)
    _native("dense_step", y_ND, x_ND, weights, *x_ND.shape, weights.gate.shape[0], *caps)
    return y_ND


def experts_step(
    x_ND: Tensor, weights: ExpertsWeights, k: int, renormalize: bool, scale: float, caps: Caps, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y [N, D], scores [N, E], chosen experts [N, k], tokens of each expert [E])."""
    x_ND = x_ND.contiguous()
    (N, D), (E, I, Z) = x_ND.shape, weights.down.shape
    y_ND, scores_NE = x_ND.new_empty(N, D), x_ND.new_empty(N, E)
    experts_Nk, counts_E = torch.empty(N, k, dtype=torch.long), torch.empty(E, dtype=torch.long)
    places = torch.empty(N * k + E, dtype=torch.long)
    S = 0 if weights.shared_gate is None else weights.shared_gate.shape[0]
    sizes = (N, D, E, k, Z, I, S, renormalize, scale, *caps, eps)
    found = (y_ND, scores_NE, experts_Nk, counts_E)
    _native("experts_step", *found, places[E:], places[:E], x_ND, weights, *sizes)
    return found
