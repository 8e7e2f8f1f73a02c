"""One batch of packed text, and what a loader owes to the loop.

Shapes: B sequences, T predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """`inputs` and `targets` [B, T] int64, `weights` [B, T] of each prediction, `documents` [B, T] of the inputs."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    documents: Tensor | None = None

    @classmethod
    def of(cls, ids: Tensor, documents: Tensor | None = None) -> TokenBatch:
        """From rows of ids [B, T+1]. A document's first token is not predicted from the document before it."""
        ids = torch.as_tensor(ids).long()
        weights = torch.ones(ids.shape[0], ids.shape[1] - 1)
        if documents is None:
            return cls(ids[:, :-1], ids[:, 1:], weights)
        documents = torch.as_tensor(documents).long()
        weights = (documents[:, 1:] == documents[:, :-1]).float()
        return cls(ids[:, :-1], ids[:, 1:], weights, documents[:, :-1])


class Loader(Protocol):
    """Endless batches that can be continued: the state names the next batch exactly."""

    def __next__(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def as_batch(raw: Any) -> TokenBatch:
    """Accept what loaders give: a TokenBatch, rows of ids [B, T+1], or `input_ids` (with `documents`, `targets`)."""
    if isinstance(raw, TokenBatch):
        return raw
    if isinstance(raw, Tensor) or hasattr(raw, "__array__"):
        return TokenBatch.of(torch.as_tensor(raw))
    if isinstance(raw, tuple):
        return TokenBatch.of(*raw)
    field = raw.get if isinstance(raw, Mapping) else lambda name: getattr(raw, name, None)
    ids = field("input_ids") if field("input_ids") is not None else field("ids")
    documents, targets, weights = field("documents"), field("targets"), field("weights")
    if ids is None:
        raise TypeError(f"a batch needs input_ids [B, T]; {type(raw).__name__} has none")
    if targets is None:
        return TokenBatch.of(ids, documents)
    ids, targets = torch.as_tensor(ids).long(), torch.as_tensor(targets).long()
    known = targets >= 0  # a target below zero is the usual mark for "not predicted"
    weights = known.float() if weights is None else torch.as_tensor(weights).float() * known
    documents = None if documents is None else torch.as_tensor(documents).long()
    return TokenBatch(ids, targets.clamp(min=0), weights, documents)


def split_batch(batch: TokenBatch, pieces: int) -> list[TokenBatch]:
    """The same rows in at most `pieces` parts."""
    if pieces == 1:
        return [batch]
    parts = [x.chunk(pieces) for x in (batch.inputs, batch.targets, batch.weights)]
    documents = batch.documents.chunk(pieces) if batch.documents is not None else [None] * len(parts[0])
    return [TokenBatch(i, t, w, d) for i, t, w, d in zip(*parts, documents, strict=True)]
