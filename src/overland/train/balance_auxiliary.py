"""The auxiliary loss: what a token could give to crowded experts costs more than what it gives to idle ones.

    f_j = E / (k N) * (tokens that chose j)        1 for an even load; carries no gradient
    P_j = mean over tokens of s_ij / sum_l s_il
    loss = coefficient * sum_j f_j P_j             1 * coefficient for an even load

f and P are those of one micro-batch, as in DeepSeek-V3 and the Switch Transformer; the layers' losses add up.

Source: Switch Transformer (Fedus et al. 2021) §2.2; DeepSeek-V3 report §2.1.2; Transformers' Mixtral has k times it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overland.train.balance import Balance, RoutingLike, logits_of


class AuxiliaryLoss(Balance):
    """Adds the auxiliary loss (and the z-loss) of every layer; moves no bias."""

    def __init__(self, coefficient: float = 1e-2, z: float = 0.0) -> None:
        super().__init__(z)
        self.coefficient = coefficient

    def loss(self, router: Sequence[RoutingLike], share: float) -> Tensor | None:
        z = super().loss(router, share)
        records = [record for record in router if record.logits is not None and len(record.scores)]
        if not self.coefficient or not records:
            return z
        found = torch.stack([
            auxiliary_loss(record.gate.affinities(logits_of(record)), record.counts, record.gate.k)
            for record in records
        ]).sum()  # fmt: skip
        return share * self.coefficient * found + (0.0 if z is None else z)


def auxiliary_loss(scores_NE: Tensor, counts_E: Tensor, k: int) -> Tensor:
    """sum_j f_j P_j, a scalar: 1 where the load or the scores are even."""
    N, E = scores_NE.shape
    f_E = counts_E.to(scores_NE.dtype) * (E / (k * N))
    P_E = (scores_NE / scores_NE.sum(-1, keepdim=True)).mean(0)
    return f_E @ P_E
