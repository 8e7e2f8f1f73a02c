"""Generation by the full forward alone: no cache, no batch, no prefixes; the reference of the engine's tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tiny import tiny

from overland.engine import Budget, Engine, Generation, Sampling
from overland.model import Decoder

MODEL = tiny()


def engine(model: Decoder = MODEL, **options: int) -> Engine:
    return Engine(model, **options)  # type: ignore[arg-type]


def logprobs_after(ids: Sequence[int], model: Decoder = MODEL) -> torch.Tensor:
    """Log-probabilities [V] of the token after `ids`."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0, -1].float().log_softmax(-1)


def greedy(prompt: Sequence[int], tokens: int, model: Decoder = MODEL, stop_ids: Sequence[int] = ()) -> list[int]:
    """The most likely continuation, up to the first stop id, which is kept."""
    ids: list[int] = []
    while len(ids) < tokens and not (ids and ids[-1] in stop_ids):
        ids.append(int(logprobs_after([*prompt, *ids], model).argmax()))
    return ids


def alone(prompt: Sequence[int], sampling: Sampling, budget: Budget | None = None) -> Generation:
    """The request on a fresh engine of its own."""
    fresh = engine()
    generation = fresh.submit(prompt, sampling, budget)
    fresh.run([generation])
    return generation
