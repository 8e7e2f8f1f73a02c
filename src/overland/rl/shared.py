"""Logits of the trained tokens, the prompts of a chunk run once: in two stages, so that memory stays bounded.

Stage one runs all prompts and keeps their cache, cut off from its graph. Every micro-batch starts from copies of
that cache and leaves its gradient there; stage two sends the summed gradient back through the prompts. The result is
the plain gradient (a test holds it against every sample run whole), whatever the micro-batches were.

Shapes: G prompts, P prompt tokens, R rows, S suffix tokens, N trained tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from overland.model import Cache, Packing
from overland.rl.batch import Bundle, MicroBatch, padded


class Forward(Protocol):
    """Logits of a chunk's micro-batches, and what is left to do for the gradient after the last of them."""

    def logits(self, batch: MicroBatch) -> Tensor:
        """[N, V] at the trained positions of the micro-batch."""
        ...

    def index(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Where those positions are in what the output layer read: rows [N] and positions [N]."""
        ...

    def finish(self) -> None:
        """Called after the last micro-batch's backward pass."""
        ...


class SharedPrompts:
    """For a decoder with a differentiable cache."""

    def __init__(self, model: Any, chunk: Sequence[Bundle], device: torch.device) -> None:
        self.model, self.device = model, device
        heads = [bundle.prompt[:-1] for bundle in chunk]
        cache = model.new_cache(len(heads))
        lengths_G = torch.tensor([len(head) for head in heads], device=device)
        model(padded(heads, device=device), packing=Packing(lengths=lengths_G), cache=cache, last_only=True)
        self._ends: list[tuple[Tensor, Tensor]] = []
        self.cache = Cache([layer.map(self._cut) for layer in cache.layers], cache.lengths)

    def _cut(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        leaf = x.detach().requires_grad_()
        self._ends.append((x, leaf))
        return leaf

    def logits(self, batch: MicroBatch) -> Tensor:
        lengths_R = torch.tensor(batch.suffix_lengths, device=self.device)
        cache = self.cache.select(batch.owner)
        logits_RSV = self.model(batch.suffix_RS, packing=Packing(lengths=lengths_R), cache=cache).logits
        picked: Tensor = logits_RSV[batch.row_N, batch.position_N]
        return picked

    def index(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        return batch.row_N, batch.position_N

    def finish(self) -> None:
        ends = [(x, leaf.grad) for x, leaf in self._ends if leaf.grad is not None]
        torch.autograd.backward([x for x, _ in ends], [gradient for _, gradient in ends])


class WholeSamples:
    """For causal models without a cache, and the reference form: every sample whole, padded on the right."""

    def __init__(self, model: Any, chunk: Sequence[Bundle], device: torch.device) -> None:
        self.model, self.device = model, device

    def logits(self, batch: MicroBatch) -> Tensor:
        heads = [batch.prompts[g][:-1] for g in batch.owner]
        suffixes = [row[:n] for row, n in zip(batch.suffix_RS.tolist(), batch.suffix_lengths, strict=True)]
        output = self.model(padded([[*h, *s] for h, s in zip(heads, suffixes, strict=True)], device=self.device))
        logits_RTV = output if isinstance(output, Tensor) else output.logits
        picked: Tensor = logits_RTV[self.index(batch)]
        return picked

    def index(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        shift_R = torch.tensor([len(batch.prompts[g]) - 1 for g in batch.owner], device=self.device)
        return batch.row_N, batch.position_N + shift_R[batch.row_N]

    def finish(self) -> None:
        """Nothing is left."""


def forward_for(model: Any, chunk: Sequence[Bundle], device: torch.device) -> Forward:
    """`SharedPrompts` where the model has a cache and every prompt has something to share."""
    if hasattr(model, "new_cache") and all(len(bundle.prompt) > 1 for bundle in chunk):
        return SharedPrompts(model, chunk, device)
    return WholeSamples(model, chunk, device)
