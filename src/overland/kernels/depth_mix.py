"""Attention over depth: a token's softmax-weighted average of earlier sums.

    a_i = (v_i / rms(v_i)) . query;   alpha = softmax_i(a_i);   mix = sum_i alpha_i v_i

Source: Kimi K3 report §2.3; reference/architecture.md §2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("depth_mix", mix_forward="ppp iiid", mix_backward="ppppp iiid")
_MOST = 64  # sources that the compiled form takes


def depth_mix(sources: Sequence[Tensor], query_D: Tensor, eps: float) -> Tensor:
    """Average `sources` (each [..., D]) per token. A zero query gives the plain average.

    Scores and average are formed in fp32 at least; raw sources are averaged.
    """
    if _native.runs(query_D, *sources) and len(sources) <= _MOST and query_D.numel():
        if torch.is_grad_enabled():
            return _CompiledMix.apply(query_D, eps, *sources)
        return _forward([v.contiguous() for v in sources], query_D.contiguous(), eps)
    return depth_mix_reference(sources, query_D, eps)


def depth_mix_reference(sources: Sequence[Tensor], query_D: Tensor, eps: float) -> Tensor:
    """The formula as it stands."""
    wide = torch.promote_types(sources[0].dtype, torch.float32)
    raw = [v.to(wide) for v in sources]
    scores = [(v @ query_D.to(wide)) * (v.square().mean(-1) + eps).rsqrt() for v in raw]
    alpha = torch.stack(scores, dim=-1).softmax(-1).unsqueeze(-1)
    mix = raw[0] * alpha[..., 0, :]
    for i, v in enumerate(raw[1:], start=1):
        mix = torch.addcmul(mix, v, alpha[..., i, :])
    return mix.to(sources[0].dtype)


def _forward(sources: list[Tensor], query: Tensor, eps: float) -> Tensor:
    y, D = torch.empty_like(sources[0]), query.numel()
    _native("mix_forward", y, sources, query, len(sources), y.numel() // D, D, eps)
    return y


class _CompiledMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, eps: float, *sources: Tensor) -> Tensor:
        query, held, ctx.eps = query.contiguous(), [v.contiguous() for v in sources], eps
        ctx.save_for_backward(query, *held)
        return _forward(held, query, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, *sources = ctx.saved_tensors
        d_query, d_sources, D = torch.zeros_like(query), [torch.empty_like(v) for v in sources], query.numel()
        d_y, sizes = gradients[0].contiguous(), (len(sources), sources[0].numel() // D, D)
        _native("mix_backward", d_sources, d_query, d_y, sources, query, *sizes, ctx.eps)
        return d_query, None, *d_sources
