"""From a router's logits to the experts and back: the choice, the rows in expert order, the weighted sum.

    s = sigmoid(logits);  experts = top-k of s + bias;  p = s[experts] (renormalised) * scale
    rows = each token once for each of its experts, sorted by expert;   u_n = sum_j p_nj y[back_nj]

Shapes: N tokens, E experts, k experts a token, M = N k rows, Z width of a row.
Source: DeepSeek-V3 report §2.1.2; Kimi K3 report §2.2; reference/architecture.md §7.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled(
    "experts",
    router_forward="pppppp iiiii d",
    router_backward="ppppp iiii d",
    order="ppppp ii",
    scatter="ppp iii",
    gather="pppp iii",
    gather_backward="pppppp iii",
    margins="ppppp iiii dd",
)


def choose_experts(
    logits_NE: Tensor,
    bias_E: Tensor,
    k: int,
    replay_Nk: Tensor | None = None,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sigmoid scores [N, E], chosen experts [N, k] (int64, best first) and their weights [N, k].

    The bias helps to choose, the raw score weighs. `replay_Nk` replaces the choice. Gradients reach the logits through
    scores and weights.
    """
    if _native.runs(logits_NE, bias_E):
        replay = None if replay_Nk is None else replay_Nk.contiguous()
        if replay is not None and replay.numel() and not 0 <= replay.min() <= replay.max() < logits_NE.shape[1]:
            found, last = f"{replay.min()}..{replay.max()}", logits_NE.shape[1] - 1
            raise IndexError(f"recorded experts lie in {found}, not in 0..{last}")
        scores, weights, experts = _CompiledChoice.apply(logits_NE, bias_E, k, replay, renormalize, scale)
        return scores, experts, weights
    return choose_experts_reference(logits_NE, bias_E, k, replay_Nk, renormalize, scale)


def choose_experts_reference(
    logits_NE: Tensor,
    bias_E: Tensor,
    k: int,
    replay_Nk: Tensor | None = None,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula as it stands."""
    scores_NE = logits_NE.sigmoid()
    if replay_Nk is None:
        replay_Nk = (scores_NE.detach() + bias_E).topk(k, dim=-1).indices
    weights_Nk = scores_NE.gather(-1, replay_Nk)
    if renormalize:
        weights_Nk = weights_Nk / (weights_Nk.sum(-1, keepdim=True) + 1e-20)
    return scores_NE, replay_Nk, weights_Nk * scale


def rows_by_expert(z_NZ: Tensor, experts_Nk: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Every token once for each of its experts: rows [M, Z] sorted by expert (stable), where each choice's row lies
    (`back` [N, k]) and the rows of each of `count` experts [count].
    """
    if _native.runs(z_NZ):
        experts = experts_Nk.contiguous()
        back, counts = torch.empty_like(experts), experts.new_empty(count)
        _native("order", z_NZ.new_empty(0), back, counts, experts.new_empty(count), experts, experts.numel(), count)
        return _CompiledRows.apply(z_NZ, back), back, counts
    chosen, k = experts_Nk.reshape(-1), experts_Nk.shape[1]
    order = chosen.argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(chosen.numel(), device=order.device)
    return z_NZ[order // k], back.view_as(experts_Nk), torch.bincount(chosen, minlength=count)


def weighted_rows(y_MZ: Tensor, back_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
    """The weighted sum of each token's rows [N, Z], in the dtype of the weights."""
    if _native.runs(y_MZ, weights_Nk):
        return _CompiledSum.apply(y_MZ, back_Nk, weights_Nk)
    y_NkZ = y_MZ[back_Nk.reshape(-1)].view(*back_Nk.shape, -1)
    return torch.einsum("nkz,nk->nz", y_NkZ.to(weights_Nk.dtype), weights_Nk)


def margin_counts(scores_NE: Tensor, bias_E: Tensor, k: int, bins: int, low: Tensor, width: Tensor) -> Tensor:
    """How often alpha_i - s_ij falls into each bin from `low` on, [E, bins] int64; alpha_i is the (k+1)-th largest of
    s_i + bias, what an expert has to beat. Values outside count in the first or last bin.
    """
    E = scores_NE.shape[1]
    if _native.runs(scores_NE, bias_E):
        counts, best = torch.zeros(E, bins, dtype=torch.long), torch.empty(k + 1, dtype=torch.long)
        scores, scratch = scores_NE.detach().contiguous(), torch.empty_like(bias_E)
        sizes = (scores.shape[0], E, k, bins, float(low), float(width))
        _native("margins", counts, scratch, best, scores, bias_E.contiguous(), *sizes)
        return counts
    alpha_N = (scores_NE + bias_E).topk(k + 1, dim=-1).values[:, -1]
    index = ((alpha_N[:, None] - scores_NE - low) / width).long().clamp_(0, bins - 1)
    flat = index + bins * torch.arange(E, device=index.device)
    return torch.bincount(flat.flatten(), minlength=E * bins).view(E, bins)


class _CompiledChoice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, bias: Tensor, k: int, replay: Tensor | None, renormalize: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits, (N, E) = logits.contiguous(), logits.shape
        scores, weights = torch.empty_like(logits), logits.new_empty(N, k)
        experts = torch.empty(N, k, dtype=torch.long) if replay is None else replay.clone()
        sizes = (N, E, k, replay is not None, renormalize, scale)
        _native("router_forward", scores, weights, experts, logits.new_empty(E), logits, bias.contiguous(), *sizes)
        ctx.save_for_backward(scores, experts)
        ctx.sizes = (N, E, k, renormalize, scale)
        ctx.mark_non_differentiable(experts)
        ctx.set_materialize_grads(False)
        return scores, weights, experts

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        scores, experts = ctx.saved_tensors
        d_scores = None if gradients[0] is None else gradients[0].contiguous()
        d_weights = scores.new_zeros(experts.shape) if gradients[1] is None else gradients[1].contiguous()
        d_logits = torch.empty_like(scores)
        _native("router_backward", d_logits, d_scores, d_weights, scores, experts, *ctx.sizes)
        return d_logits, None, None, None, None, None


class _CompiledRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        rows, ctx.sizes = z.new_empty(back.numel(), z.shape[-1]), (*back.shape, z.shape[-1])
        _native("scatter", rows, z.contiguous(), back, *ctx.sizes)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (back,), d_rows = ctx.saved_tensors, gradients[0].contiguous()
        d_z = d_rows.new_empty(back.shape[0], d_rows.shape[-1])
        _native("gather", d_z, d_rows, back, None, *ctx.sizes)
        return d_z, None


class _CompiledSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, back: Tensor, weights: Tensor) -> Tensor:
        y, weights = y.contiguous(), weights.contiguous()
        ctx.save_for_backward(y, back, weights)
        u, ctx.sizes = y.new_empty(back.shape[0], y.shape[-1]), (*back.shape, y.shape[-1])
        _native("gather", u, y, back, weights, *ctx.sizes)
        return u

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        y, back, weights = ctx.saved_tensors
        d_y, d_weights = torch.empty_like(y), torch.empty_like(weights)
        _native("gather_backward", d_y, d_weights, gradients[0].contiguous(), y, back, weights, *ctx.sizes)
        return d_y, None, d_weights
