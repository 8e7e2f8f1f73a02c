"""Which experts every token went to, recorded for those who train on what was sampled.

A trainer that routes anew sends some tokens elsewhere than the sampler did, and its ratios are then of another model;
with the record it replays the choice (`Replay.experts` of the model). Shapes: N tokens of a call, M expert layers, k
experts a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overland.engine.request import Generation
from overland.model import Aux, Decoder


def expert_layers(model: Decoder) -> int:
    """How many layers have experts to choose from."""
    return sum(kind.feed_forward == "moe" for kind in model.config.layers)


def experts_of(aux: Aux) -> Tensor:
    """[N, M, k] of a call, one byte an id where all fit in it."""
    experts_NMk = torch.stack([routing.experts for routing in aux.router], dim=1)
    small = all(routing.counts.shape[-1] <= 256 for routing in aux.router)
    return experts_NMk.to(torch.uint8 if small else torch.int32)


def record(generation: Generation, experts_TMk: Tensor, first: int) -> None:
    """Take the experts of the tokens from `first` on, those that are wanted and not held yet."""
    if generation.routed_from is None:
        return
    skip = generation.routed_from + generation.routed_tokens - first
    if 0 <= skip < len(experts_TMk):
        generation.routed.append(experts_TMk[skip:].clone())


def wanted(requests: Sequence[Generation]) -> bool:
    """Whether anybody wants a record."""
    return any(generation.routed_from is not None for generation in requests)


def cacheable(ids: Sequence[int], routed_from: int | None) -> Sequence[int]:
    """The part of a prompt whose prefixes may be taken from the cache: tokens that are recorded have to be run."""
    return ids if routed_from is None else ids[: routed_from + 1]
