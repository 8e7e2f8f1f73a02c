"""What is measured while training: how evenly experts work, how fast it goes, how well text is predicted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from overland.train.balance import RoutingLike


def utilisation(counts_E: Tensor) -> dict[str, float]:
    """How evenly one layer's tokens fall on its experts, from tokens per expert [E].

    `max_over_mean` 1 is perfect; `min_over_mean` 0 is a dead expert; `entropy` is normalised, 1 for an even load.
    """
    counts = counts_E.double()
    total = counts.sum().item()
    if total == 0:
        return {"max_over_mean": 0.0, "min_over_mean": 0.0, "dead": float(len(counts)), "entropy": 0.0}
    share = counts / total
    entropy = -(share * share.clamp(min=1e-300).log()).sum().item()
    return {
        "max_over_mean": share.max().item() * len(counts),
        "min_over_mean": share.min().item() * len(counts),
        "dead": float((counts == 0).sum().item()),
        "entropy": entropy / math.log(len(counts)) if len(counts) > 1 else 1.0,
    }


def expert_metrics(counts: Sequence[Tensor], shares: bool = False) -> dict[str, Any]:
    """Flat `moe/...` metrics of all expert layers: the worst layer of each figure, and each layer's shares if asked."""
    if not counts:
        return {}
    layers = [utilisation(c) for c in counts]
    found: dict[str, Any] = {
        "moe/load_max_over_mean": max(x["max_over_mean"] for x in layers),
        "moe/utilisation_min": min(x["min_over_mean"] for x in layers),
        "moe/dead_experts": int(sum(x["dead"] for x in layers)),
        "moe/entropy": min(x["entropy"] for x in layers),
    }
    if shares:
        for layer, count in enumerate(counts):
            share = count.double() / count.sum().clamp(min=1)
            found[f"moe/shares/{layer}"] = [round(x, 5) for x in share.tolist()]
    return found


def router_agreement(experts_Nk: Tensor, others_Nk: Tensor) -> float:
    """Share of the choices that two recordings of the same tokens have in common, in whatever order; 1 for none.

    Two recordings are, for example, a sampler's and a trainer's, or a router's with and without its bias.
    """
    if not experts_Nk.numel():
        return 1.0
    return (experts_Nk[:, :, None] == others_Nk[:, None, :]).any(-1).double().mean().item()


def routing_totals(router: Sequence[RoutingLike]) -> Tensor:
    """Of one forward, over its layers: [choices, dropped, those that the raw scores alone would have made too]."""
    choices = dropped = agreed = 0.0
    for record in router:
        k, bias = record.gate.k, record.gate.e_score_correction_bias
        made = float(record.counts.sum())
        choices += made
        dropped += 0.0 if record.kept is None else made - float(record.kept.sum())
        if bias.any():
            chosen, raw = ((record.scores + b).topk(k, dim=-1).indices for b in (bias, torch.zeros_like(bias)))
            agreed += made * router_agreement(chosen, raw)
        else:
            agreed += made
    return torch.tensor([choices, dropped, agreed], dtype=torch.float64)


def routing_metrics(totals: Tensor) -> dict[str, float]:
    """`moe/dropped_share` and `moe/bias_agreement` from the sums of routing_totals."""
    choices, dropped, agreed = totals.tolist()
    if not choices:
        return {}
    return {"moe/dropped_share": dropped / choices, "moe/bias_agreement": agreed / choices}


class ExpertCounts:
    """Tokens per expert of each layer, added up over micro-batches or steps."""

    def __init__(self) -> None:
        self.counts: list[Tensor] = []

    def add(self, counts: Sequence[Tensor]) -> None:
        if not self.counts:
            self.counts = [torch.zeros_like(c) for c in counts]
        for kept, new in zip(self.counts, counts, strict=True):
            kept += new

    def take(self) -> list[Tensor]:
        """The sums so far; counting starts again."""
        counts, self.counts = self.counts, []
        return counts


class Throughput:
    """Tokens a second of wall time, smoothed over the last steps. For people to read; decides nothing."""

    def __init__(self, window: int = 20, clock: Callable[[], float] = time.perf_counter) -> None:
        self.window, self.clock = window, clock
        self.marks: list[tuple[float, int]] = [(clock(), 0)]

    def step(self, tokens: int) -> float:
        """Count one step; returns tokens a second over the window."""
        self.marks.append((self.clock(), self.marks[-1][1] + tokens))
        self.marks = self.marks[-self.window - 1 :]
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / max(end - start, 1e-9)


def bits_per_byte(nats: float, text_bytes: int) -> float:
    """The comparison that does not depend on a vocabulary: total -log p in nats over the text's UTF-8 bytes."""
    return nats / math.log(2) / max(1, text_bytes)
