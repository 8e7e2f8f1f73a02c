"""The feed-forwards of one decoding step in one call each: what `overland.model.moe` and `.feed_forward` compute.

    dense     W_down( gated(W_gate x, W_up x) )
    experts   s = sigmoid(W_r x) or softmax(W_r x);  top-k of s + bias, in the best groups;
              u = sum_j p_j FFN_j(W_z x);  W_y norm(u) + shared(x)

x is what the sublayer reads of the residual (residual.py), into which the output goes. Shapes: N tokens, D model, E
experts, k experts a token, Z latent, I expert width, S width of the shared ones. The plain forms are the layer's own
forward. Caps are SiTU's; both 0 stand for SwiGLU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled
from overland.kernels.held import Held
from overland.kernels.residual import Reading

_native = Compiled("decode_ffn", dense_step="ppp iiiii dddd", experts_step="pppppp iiiiiiiiiiiii dddddd")
Caps = tuple[float, float]
MOST_GROUPS = 64  # of experts, that the compiled form takes


class Routes(NamedTuple):
    """How a router chooses: k experts, weights brought to sum 1 or not, times `scale`; one softmax instead of sigmoids;
    only out of the best `k_groups` of so many groups."""

    k: int
    renormalize: bool
    scale: float
    softmax: bool = False
    groups: int = 1
    k_groups: int = 1


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


def steps_ffn(reading: Reading, held: Held, weights: GLUWeights | ExpertsWeights) -> bool:
    """Whether `dense_step` or `experts_step` runs for these tensors: one dtype, on the CPU, the compiled form built."""
    return held.takes(_native, weights) and reading.fits(held.dtype)


def dense_step(reading: Reading, held: Held, weights: GLUWeights, caps: Caps) -> Tensor:
    """The residual after the feed-forward, of the sources' shape."""
    s, y = reading.sources[-1], torch.empty_like(reading.sources[-1])
    sizes = (len(reading.sources), reading.keeps, reading.tokens, s.shape[-1], weights.gate.shape[0])
    places, numbers = (y.data_ptr(), reading.pointers(), held.pointers), (reading.eps, reading.depth_eps, *caps)
    _native.function("dense_step", held.dtype)(*places, *sizes, *numbers)
    return y


def experts_step(
    reading: Reading,
    held: Held,
    weights: ExpertsWeights,
    routes: Routes,
    caps: Caps,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(residual after the experts, of the sources' shape, scores [N, E], chosen experts [N, k], tokens of each expert
    [E]). `eps`: the latent norm's.
    """
    s, N, k, (E, I, Z) = reading.sources[-1], reading.tokens, routes.k, weights.down.shape
    y, scores_NE = torch.empty_like(s), s.new_empty(N, E)
    experts_Nk, counts_E = torch.empty(N, k, dtype=torch.long), torch.empty(E, dtype=torch.long)
    S = 0 if weights.shared_gate is None else weights.shared_gate.shape[0]
    found = (y, scores_NE, experts_Nk, counts_E)
    sizes = (len(reading.sources), reading.keeps, N, s.shape[-1], E, k, Z, I, S)
    rule = (routes.renormalize, routes.softmax, routes.groups, routes.k_groups)
    numbers = (routes.scale, *caps, eps, reading.eps, reading.depth_eps)
    places = (*(x.data_ptr() for x in found), reading.pointers(), held.pointers)
    _native.function("experts_step", held.dtype)(*places, *sizes, *rule, *numbers)
    return found
