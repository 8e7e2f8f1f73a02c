"""Capacity: how many tokens an expert may take in one forward, and which are dropped beyond that.

    C = ceil(factor * N k / E)

A dropped choice contributes nothing; the token keeps its other experts, the shared experts and the residual. The
weights of the others are not raised. Padding takes no room.

Shapes: N tokens, k experts a token, E experts.
Source: GShard (Lepikhin et al. 2020), Switch Transformer (Fedus et al. 2021) §2.2; Megatron-LM's token dropping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Capacity:
    """`factor` of the even load, and who stays: the strongest choices ("score"), or the first ("position").

    "position" takes every token's best expert before any token's second one, in the order of the tokens.
    """

    factor: float
    policy: Literal["score", "position"] = "score"

    def kept(self, experts_Nk: Tensor, weights_Nk: Tensor, experts: int, valid_N: Tensor | None = None) -> Tensor:
        """Which choices stay [N, k] bool. `valid_N` marks real tokens; padding is never kept and takes no room."""
        N, k = experts_Nk.shape
        real = N if valid_N is None else int(valid_N.sum())
        room = math.ceil(self.factor * real * k / experts)
        chosen = experts_Nk if valid_N is None else experts_Nk.masked_fill(~valid_N[:, None], experts)
        if self.policy == "score":
            first_in_line = weights_Nk.detach().reshape(-1).argsort(descending=True, stable=True)
        else:
            first_in_line = torch.arange(N * k, device=chosen.device).view(N, k).T.reshape(-1)
        order = first_in_line[chosen.reshape(-1)[first_in_line].argsort(stable=True)]  # by expert, then by priority
        counts = torch.bincount(chosen.reshape(-1), minlength=experts + 1)
        starts = counts.cumsum(0) - counts
        by_expert = chosen.reshape(-1)[order]
        place = torch.arange(N * k, device=chosen.device) - starts[by_expert]
        kept = torch.empty(N * k, dtype=torch.bool, device=chosen.device)
        kept[order] = (place < room) & (by_expert < experts)
        return kept.view(N, k)


def limit_experts(model: nn.Module, capacity: Capacity | None) -> None:
    """Give every expert layer of `model` this capacity; None drops nothing."""
    for module in model.modules():
        if hasattr(module, "capacity"):
            setattr(module, "capacity", capacity)  # noqa: B010 (not an attribute of every module)
