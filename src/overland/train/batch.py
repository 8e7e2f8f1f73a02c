"""One batch of packed text, and what a loader owes to the loop.

Shapes: B sequences, T predicted tokens.
"""

from __future__ import annotations

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
    """Endless batches that can be continued: the state names the next batch exactly (overland.corpus.TokenLoader)."""

    def next(self) -> Any:
        """A TokenBatch, or arrays (input_ids [B, T], targets [B, T], document ids [B, T])."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def as_batch(raw: Any) -> TokenBatch:
    """A loader's batch as tensors. Targets of a loader that cuts one long stream all count."""
    if isinstance(raw, TokenBatch):
        return raw
    inputs, targets, documents = (torch.as_tensor(part).long() for part in raw)
    return TokenBatch(inputs, targets, torch.ones(targets.shape), documents)


def split_batch(batch: TokenBatch, pieces: int) -> list[TokenBatch]:
    """The same rows in at most `pieces` parts."""
    if pieces == 1:
        return [batch]
    parts = [x.chunk(pieces) for x in (batch.inputs, batch.targets, batch.weights)]
    documents = batch.documents.chunk(pieces) if batch.documents is not None else [None] * len(parts[0])
    return [TokenBatch(i, t, w, d) for i, t, w, d in zip(*parts, documents, strict=True)]
