"""The sign rule: after each step an expert's bias moves by a fixed amount towards the even load.

    b_j <- b_j + rate * sign(mean(c) - c_j)

A rate of 0.001 needs about a thousand steps for the range of a sigmoid. Counts c are whole numbers and add up over
micro-batches and ranks, so the rule is exact in any layout.

Source: Wang et al. 2024 (auxiliary-loss-free load balancing); DeepSeek-V3 report §2.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overland.train.balance import Balance, Gate, Reduce, RoutingLike


class SignBalance(Balance):
    """Collects a step's counts, then moves every gate's bias by `rate` one way or the other."""

    def __init__(self, rate: float = 1e-3, reduce: Reduce | None = None, z: float = 0.0) -> None:
        super().__init__(z)
        self.rate, self.reduce = rate, reduce
        self._seen: list[tuple[Gate, Tensor]] = []

    def observe(self, router: Sequence[RoutingLike]) -> None:
        if not self._seen:
            self._seen = [(record.gate, torch.zeros_like(record.counts)) for record in router]
        for (_, counts_E), record in zip(self._seen, router, strict=True):
            counts_E += record.counts

    @torch.no_grad()
    def update(self) -> None:
        for gate, counts_E in self._seen:
            total = self.reduce(counts_E) if self.reduce else counts_E
            excess = total * len(total) - total.sum()  # E times the distance from the mean, a whole number
            gate.e_score_correction_bias.sub_(self.rate * excess.sign())
        self._seen = []

    def discard(self) -> None:
        self._seen = []
