"""What every way of balancing the experts offers to a training loop.

A rule sees the routing of each micro-batch, may add a term to its loss, and moves the routers' selection biases after
the step. The recipe's `balance` names one:

    quantile    the bias that would have given every expert its share of this step's tokens   (balance_quantile)
    sign        a small fixed step of the bias towards the even load                           (balance_sign)
    auxiliary   a loss that pulls the scores of crowded experts down                           (balance_auxiliary)
    none        nothing moves

The z-loss, mean(logsumexp(logits)^2), keeps router logits small and goes with any of them. Capacity and dropping are
the model's (overland.model.capacity). Sums over ranks are injected as `reduce`; no rule knows of processes.

Shapes: N tokens, E experts. Source of the z-loss: ST-MoE (Zoph et al. 2022) §3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""A sum over ranks, in place or returned."""


class Gate(Protocol):
    """A router module: how many experts a token takes and the bias that helps to choose them."""

    k: int
    e_score_correction_bias: Tensor

    def affinities(self, logits_NE: Tensor) -> Tensor:
        """The scores [N, E] of logits."""
        ...


class RoutingLike(Protocol):
    """One layer's routing record of a forward (overland.model.Routing)."""

    @property
    def scores(self) -> Tensor: ...

    @property
    def counts(self) -> Tensor: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def kept(self) -> Tensor | None: ...

    @property
    def logits(self) -> Tensor | None: ...


class Balance:
    """The rule "none", and the face of all: observe and loss for every micro-batch, then update or discard."""

    def __init__(self, z: float = 0.0) -> None:
        self.z = z

    def observe(self, router: Sequence[RoutingLike]) -> None:
        """Take in the routing of one micro-batch, one record a layer, in layer order."""

    def loss(self, router: Sequence[RoutingLike], share: float) -> Tensor | None:
        """What to add to the micro-batch's loss, or None. `share` is its part of the step's tokens, over all ranks."""
        records = [record for record in router if record.logits is not None and len(record.scores)]
        if not self.z or not records:
            return None
        return share * self.z * torch.stack([z_loss(logits_of(record)) for record in records]).sum()

    def update(self) -> None:
        """Move the biases for the next step and forget this one."""

    def discard(self) -> None:
        """Forget what was observed: a skipped step moves nothing."""


def logits_of(record: RoutingLike) -> Tensor:
    """A record's logits [N, E]; they are there where a gradient is recorded."""
    assert record.logits is not None
    return record.logits


def z_loss(logits_NE: Tensor) -> Tensor:
    """mean over tokens of logsumexp(logits)^2, a scalar."""
    return logits_NE.logsumexp(-1).square().mean()
