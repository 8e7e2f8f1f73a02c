"""Quantile balancing: the selection bias that gives every expert its share of the tokens just seen.

With m tokens, E experts, k a token, scores s and the current bias b:

    alpha_i = (k+1)-th largest of s_i + b          what a token's expert has to beat
    bhat_j  = -(mk/E + 1)-th largest of s_ij - alpha_i over the tokens
    b_new   = bhat - mean(bhat)                    from the next step on; no gradient, no weight decay

Source: Kimi K3 report; reference/architecture.md §7.4. The exact form needs a step's scores in one place. The histogram
form keeps integer counts [E, bins], which add up over micro-batches and, through `reduce`, over ranks.

Shapes: N tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overland import kernels
from overland.errors import UsageError
from overland.train.balance import Balance, Gate, Reduce, RoutingLike


def cutoffs(scores_NE: Tensor, bias_E: Tensor, k: int) -> Tensor:
    """The (k+1)-th largest biased score of every token [N]."""
    return (scores_NE + bias_E).topk(k + 1, dim=-1).values[:, -1]


def quantile_bias(scores_NE: Tensor, bias_E: Tensor, k: int) -> Tensor:
    """The new bias [E], mean zero, from all scores of a step. Between two tokens it interpolates."""
    N, E = scores_NE.shape
    if k >= E or N == 0:
        return bias_E.clone()
    margins = (scores_NE - cutoffs(scores_NE, bias_E, k)[:, None]).sort(dim=0, descending=True).values
    q = N * k / E
    low = min(int(q), N - 1)
    high = min(low + 1, N - 1)
    threshold = margins[low] + (margins[high] - margins[low]) * (q - int(q))
    return -threshold + threshold.mean()


def margin_histogram(scores_NE: Tensor, bias_E: Tensor, k: int, bins: int) -> Tensor:
    """Counts [E, bins] of alpha_i - s_ij over [min b - 1, max b + 1], where scores in (0, 1) always fall."""
    low, width = _bins(bias_E, bins)
    return kernels.margin_counts(scores_NE, bias_E, k, bins, low, width)


def histogram_bias(counts: Tensor, bias_E: Tensor, k: int) -> Tensor:
    """The new bias [E], mean zero, from `margin_histogram` counts taken under `bias_E`."""
    E, bins = counts.shape
    tokens = int(counts[0].sum())
    if tokens == 0:
        return bias_E.clone()
    low, width = _bins(bias_E, bins)
    q = tokens * k / E
    reached = counts.cumsum(-1)
    first = (reached < q).sum(-1).clamp_(max=bins - 1)
    here = counts.gather(1, first[:, None])[:, 0]
    before = reached.gather(1, first[:, None])[:, 0] - here
    inside = ((q - before) / here.clamp(min=1)).clamp_(0.0, 1.0)
    bhat = low + (first + inside) * width
    return (bhat - bhat.mean()).to(bias_E.dtype)


def _bins(bias_E: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    low, high = bias_E.min() - 1, bias_E.max() + 1
    return low, (high - low) / bins


class QuantileBalance(Balance):
    """Collects a step's routing, then moves every gate's bias once.

    `ema` keeps that share of the old bias (advisable when a step has few tokens). `bins` 0 is the exact form; with
    `reduce` (a sum over ranks, in place or returned) the histogram form is needed.
    """

    def __init__(self, ema: float = 0.0, bins: int = 0, reduce: Reduce | None = None, z: float = 0.0) -> None:
        super().__init__(z)
        if reduce is not None and bins == 0:
            raise UsageError("balance_bins = 0 sorts one process's scores; ranks need a histogram, for example 1000")
        self.ema, self.bins, self.reduce = ema, bins, reduce
        self._seen: list[tuple[Gate, list[Tensor]]] = []

    def observe(self, router: Sequence[RoutingLike]) -> None:
        if not self._seen:
            self._seen = [(record.gate, []) for record in router]
        for (gate, kept), record in zip(self._seen, router, strict=True):
            scores, bias = record.scores.detach(), gate.e_score_correction_bias
            if self.bins and gate.k < scores.shape[1]:
                found = margin_histogram(scores, bias, gate.k, self.bins)
                kept[:] = [kept[0] + found] if kept else [found]
            else:
                kept.append(scores)

    @torch.no_grad()
    def update(self) -> None:
        for gate, kept in self._seen:
            bias = gate.e_score_correction_bias
            if gate.k >= bias.shape[0]:
                continue
            if self.bins:
                counts = self.reduce(kept[0]) if self.reduce else kept[0]
                new = histogram_bias(counts, bias, gate.k)
            else:
                new = quantile_bias(torch.cat(kept), bias, gate.k)
            bias.lerp_(new, 1.0 - self.ema)
        self._seen = []

    def discard(self) -> None:
        self._seen = []
