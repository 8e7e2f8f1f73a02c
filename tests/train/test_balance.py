"""Quantile balancing against measured loads (reference/architecture.md §18.5) and its own definition."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from overland.errors import UsageError
from overland.train import QuantileBalance, histogram_bias, margin_histogram, quantile_bias

E, K, N = 64, 4, 4096


@dataclass
class Gate:
    k: int
    e_score_correction_bias: Tensor


@dataclass
class Record:
    scores: Tensor
    counts: Tensor
    gate: Gate


class Skewed:
    """Scores whose experts' means spread by 1.5 logits."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.mean = 1.5 * torch.randn(E, generator=self.generator)

    def batch(self) -> Tensor:
        return (self.mean + torch.randn(N, E, generator=self.generator)).sigmoid()


def counts(scores: Tensor, bias: Tensor, k: int = K) -> Tensor:
    return torch.bincount((scores + bias).topk(k, -1).indices.flatten(), minlength=scores.shape[1])


def load(scores: Tensor, bias: Tensor) -> float:
    found = counts(scores, bias).double()
    return (found.max() / found.mean()).item()


@pytest.mark.parametrize("seed", range(4))
def test_one_update_flattens_a_skewed_load_and_fresh_batches_keep_it_flat(seed: int) -> None:
    source, bias = Skewed(seed), torch.zeros(E)
    first = source.batch()
    assert load(first, bias) > 12
    exact = quantile_bias(first, bias, K)
    binned = histogram_bias(margin_histogram(first, bias, K, 1000), bias, K)
    assert 1.3 < load(first, exact) < 1.7
    assert load(first, binned) < 1.75
    for _ in range(8):
        bias = quantile_bias(source.batch(), bias, K)
    assert load(source.batch(), bias) < 1.35


def test_repeating_one_batch_converges_around_the_target() -> None:
    scores, bias = Skewed(0).batch(), torch.zeros(E)
    for _ in range(8):
        bias = quantile_bias(scores, bias, K)
    found = counts(scores, bias)
    assert found.min() >= 240
    assert found.max() <= 266
    assert abs(bias.mean()) < 1e-6


def test_an_experts_share_of_margins_exceeds_its_threshold() -> None:
    scores, bias = Skewed(1).batch(), 0.1 * torch.randn(E, generator=torch.Generator().manual_seed(2))
    alpha = (scores + bias).topk(K + 1, -1).values[:, -1:]
    raw = scores - alpha
    threshold = raw.sort(0, descending=True).values[N * K // E]
    torch.testing.assert_close(quantile_bias(scores, bias, K), threshold.mean() - threshold)
    # "At most": where the (k+1)-th expert is the expert itself the margin is -b exactly, and such tokens tie.
    assert ((raw > threshold).sum(0) <= N * K // E).all()
    assert ((raw >= threshold).sum(0) > N * K // E).all()


def test_the_histogram_form_is_within_a_bin_of_the_exact_one() -> None:
    scores, bias = Skewed(3).batch(), torch.zeros(E)
    exact = quantile_bias(scores, bias, K)
    binned = histogram_bias(margin_histogram(scores, bias, K, 1000), bias, K)
    assert (exact - binned).abs().max() < 2 * 2.0 / 1000


def test_micro_batches_and_ranks_add_up_to_the_whole_step() -> None:
    scores = Skewed(4).batch()
    halves = scores[: N // 2], scores[N // 2 :]

    def after(pieces: list[Tensor], **options: object) -> Tensor:
        gate = Gate(K, torch.zeros(E))
        balance = QuantileBalance(**options)  # type: ignore[arg-type]
        for piece in pieces:
            balance.observe([Record(piece, counts(piece, torch.zeros(E)), gate)])
        balance.update()
        return gate.e_score_correction_bias

    other = margin_histogram(halves[1], torch.zeros(E), K, 1000)
    assert torch.equal(after([scores]), after(list(halves)))
    assert torch.equal(after([scores], bins=1000), after(list(halves), bins=1000))
    assert torch.equal(after([scores], bins=1000), after([halves[0]], bins=1000, reduce=lambda mine: mine + other))


def test_the_old_biass_share_is_kept_and_a_skipped_step_moves_nothing() -> None:
    scores = Skewed(5).batch()
    gate = Gate(K, torch.zeros(E))
    record = Record(scores, counts(scores, torch.zeros(E)), gate)
    balance = QuantileBalance(ema=0.75)
    balance.observe([record])
    balance.discard()
    balance.update()
    assert not gate.e_score_correction_bias.any()
    balance.observe([record])
    balance.update()
    torch.testing.assert_close(gate.e_score_correction_bias, 0.25 * quantile_bias(scores, torch.zeros(E), K))


def test_when_every_expert_is_always_chosen_nothing_moves() -> None:
    gate = Gate(3, torch.zeros(3))
    for bins in (0, 10):
        balance = QuantileBalance(bins=bins)
        balance.observe([Record(torch.rand(5, 3), torch.full((3,), 5), gate)])
        balance.update()
        assert not gate.e_score_correction_bias.any()


def test_ranks_need_the_histogram_form() -> None:
    with pytest.raises(UsageError, match="balance_bins = 0"):
        QuantileBalance(reduce=lambda x: x)
