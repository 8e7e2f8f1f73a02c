"""Losses against torch's own, and the promise that cutting a batch changes nothing."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from overland.train import cross_entropy, token_logprobs


def some(seed: int, rows: int = 6, tokens: int = 5, vocabulary: int = 11) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, tokens, vocabulary, generator=g, dtype=torch.float64)
    targets = torch.randint(0, vocabulary, (rows, tokens), generator=g)
    weights = torch.rand(rows, tokens, generator=g, dtype=torch.float64) * (torch.rand(rows, tokens, generator=g) > 0.4)
    return logits, targets, weights


@given(seed=st.integers(0, 10**6), cuts=st.sets(st.integers(1, 5)))
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(seed: int, cuts: set[int]) -> None:
    logits, targets, weights = some(seed)
    total = weights.sum().clamp(min=1e-9)
    whole = logits.clone().requires_grad_()
    loss = cross_entropy(whole, targets, weights, total)
    loss.backward()
    pieces = logits.clone().requires_grad_()
    summed = 0.0
    edges = [0, *sorted(cuts), 6]
    for a, b in pairwise(edges):
        part = cross_entropy(pieces[a:b], targets[a:b], weights[a:b], total)
        part.backward()
        summed += part.item()
    torch.testing.assert_close(torch.tensor(summed, dtype=torch.float64), loss.detach(), rtol=1e-12, atol=1e-12)
    assert whole.grad is not None
    torch.testing.assert_close(pieces.grad, whole.grad, rtol=1e-12, atol=1e-14)


def test_weights_of_one_are_torchs_mean_and_weight_zero_is_ignore_index() -> None:
    logits, targets, weights = some(3)
    kept = (weights > 0).double()
    ignored = targets.masked_fill(kept == 0, -100)
    expected = F.cross_entropy(logits.flatten(0, 1), ignored.flatten())
    torch.testing.assert_close(cross_entropy(logits, targets, kept, kept.sum()), expected)


def test_logprobs_are_formed_in_fp32_and_sum_to_one_over_the_vocabulary() -> None:
    logits = (torch.randn(2, 3, 7) * 20).bfloat16()
    every = torch.stack([token_logprobs(logits, torch.full((2, 3), v)) for v in range(7)], -1)
    assert every.dtype == torch.float32
    torch.testing.assert_close(every.exp().sum(-1), torch.ones(2, 3))


def test_temperature_divides_the_logits() -> None:
    logits, targets, _ = some(1)
    torch.testing.assert_close(token_logprobs(logits, targets, 2.0), token_logprobs(logits / 2, targets))
