"""What every plan comes to: how many of an expert's tokens each rank computes, and whose tokens those are.

Shapes: R ranks, S ranks that tokens come from (the same ones), E experts. Expert e's home is rank e // (E / R).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overland.errors import UsageError


@dataclass(frozen=True)
class Shares:
    """`tokens` [R, E] int64: choices of expert e that rank r computes; `dropped`: choices that nobody does."""

    tokens: Tensor
    dropped: int = 0

    @property
    def loads(self) -> Tensor:
        """Choices that each rank computes, [R]."""
        return self.tokens.sum(1)

    @property
    def imbalance(self) -> float:
        """The busiest rank's load over the mean; 1 where there is none."""
        loads = self.loads.double()
        return float(loads.max() / loads.mean()) if loads.sum() else 1.0

    @property
    def redundant(self) -> Tensor:
        """Experts that each rank computes away from their home, [R]: weights to fetch, gradients to send back."""
        ranks, experts = self.tokens.shape
        return ((self.tokens > 0) & ~at_home(experts, ranks)).sum(1)


def at_home(experts: int, ranks: int) -> Tensor:
    """Whether rank r is expert e's home, [R, E] bool."""
    return torch.arange(experts) // (experts // ranks) == torch.arange(ranks)[:, None]


def check(counts_E: Tensor, ranks: int) -> list[int]:
    """The counts as integers; raises UsageError where they are none or the experts do not divide over the ranks."""
    if counts_E.dim() != 1 or counts_E.is_floating_point() or bool((counts_E < 0).any()):
        raise UsageError("counts must be one whole number from 0 an expert")
    if ranks < 1 or len(counts_E) % ranks:
        from overland.parallel.layout import refuse

        raise refuse("ep", ranks, "the experts", len(counts_E))
    return [int(count) for count in counts_E]


def spread_over_sources(counts_SE: Tensor, shares: Shares) -> Tensor:
    """Which source's choices go where, [S, R, E]: every rank can work it out alone from the gathered counts [S, E].

    A source keeps what it may compute itself; the rest of its choices goes, in order of ranks, to whoever has room
    left. Sums over S are `shares.tokens`, over R `counts_SE` but for what a plan drops, taken from the last sources.
    """
    sources, experts = counts_SE.shape
    moved = torch.zeros(sources, shares.tokens.shape[0], experts, dtype=torch.int64)
    room_RE = shares.tokens.clone()
    own = torch.arange(sources)
    kept_SE = torch.minimum(counts_SE, room_RE)
    moved[own, own] = kept_SE
    room_RE -= kept_SE
    # Both sides as intervals on one line of choices: source s has [start, end) of them, so has rank r; they overlap.
    have_end = (counts_SE - kept_SE).cumsum(0)
    room_end = room_RE.cumsum(0)
    have_start, room_start = have_end - (counts_SE - kept_SE), room_end - room_RE
    overlap = torch.minimum(have_end[:, None], room_end[None]) - torch.maximum(have_start[:, None], room_start[None])
    return moved + overlap.clamp(min=0)
