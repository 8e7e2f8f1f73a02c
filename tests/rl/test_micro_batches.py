"""Denominators are global and prompts are shared: neither the split nor the sharing may change loss or gradient.

Held against one pass over every sample whole (`WholeSamples`), in float64, on a small decoder with every layer kind.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from overland.model import Decoder, initialise, preset
from overland.rl import GRPO, Group, RLSection, Sample
from overland.rl.batch import (
    MicroBatch,
    batch_figures,
    chunks,
    collate,
    positions,
    shares,
    split,
    suffix_length,
    train_rows,
)
from overland.rl.loss import LossFigures
from overland.rl.shared import SharedPrompts, WholeSamples, forward_for
from overland.rl.update import accumulate


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(preset("nano", vocab_size=64, hidden_size=64, num_experts=4, num_experts_per_token=2))
    initialise(decoder)
    return decoder.double()


def groups(seed: int = 0, count: int = 3) -> list[Group]:
    """Groups of 2 to 4 samples: prompts of 3 to 20 tokens, answers with tokens between that were not sampled."""
    draw = random.Random(seed)
    result = []
    for g in range(count):
        prompt = tuple(draw.randrange(64) for _ in range(draw.randint(3, 20)))
        samples = []
        for i in range(draw.randint(2, 4)):
            rest = draw.randint(2, 25)
            trained = [draw.random() < 0.6 for _ in range(rest)]
            trained[0] = True
            samples.append(
                Sample(
                    id=f"{g}/{i}",
                    ids=(*prompt, *(draw.randrange(64) for _ in range(rest))),
                    prompt_length=len(prompt),
                    trained=(*[False] * len(prompt), *trained),
                    logprobs=(*[0.0] * len(prompt), *(-4 * draw.random() if t else 0.0 for t in trained)),
                    reward=float(i % 2) + draw.random(),
                )
            )
        result.append(Group("toy", 0, "high", f"task-{g}", tuple(samples)))
    return result


def loss_and_gradient(model: Decoder, section: RLSection, seed: int = 0) -> tuple[float, Tensor]:
    model.zero_grad(set_to_none=True)
    done = accumulate(model, train_rows(groups(seed), section.algorithm, 64), section)
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in model.parameters()])
    return done.loss, flat


@settings(max_examples=6, deadline=None)
@given(tokens=st.integers(1, 300), normalise=st.sampled_from(["token", "sequence", "constant"]))
def test_any_split_gives_the_same_loss_and_gradient(model: Decoder, tokens: int, normalise: str) -> None:
    whole = RLSection(micro_batch_tokens=100_000, algorithm=GRPO(normalise=normalise))  # type: ignore[arg-type]
    cut = RLSection(micro_batch_tokens=tokens, algorithm=GRPO(normalise=normalise))  # type: ignore[arg-type]
    loss, gradient = loss_and_gradient(model, whole)
    loss_cut, gradient_cut = loss_and_gradient(model, cut)
    assert loss_cut == pytest.approx(loss, abs=1e-9)
    assert (gradient_cut - gradient).abs().max() < 1e-8
    assert gradient.abs().max() > 1e-4


def test_sharing_the_prompt_changes_neither_loss_nor_gradient(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    section = RLSection(micro_batch_tokens=200)
    loss, gradient = loss_and_gradient(model, section)
    monkeypatch.setattr("overland.rl.update.forward_for", WholeSamples)
    loss_full, gradient_full = loss_and_gradient(model, section)
    assert loss == pytest.approx(loss_full, abs=1e-9)
    assert (gradient - gradient_full).abs().max() < 1e-8


def test_samples_that_are_alike_are_computed_once_with_the_same_gradient(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of two samples of every group, one of them with another reward: that one stays a row of its own."""

    def with_copies() -> list[Group]:
        found = []
        for group in groups():
            first, second, *rest = group.samples
            copies = [replace(first, id=f"{first.id}/{i}") for i in range(3)]
            other = replace(second, id=f"{second.id}/other", reward=7.0)
            found.append(group.with_samples((first, second, *rest, *copies, other)))
        return found

    def run() -> tuple[float, Tensor, LossFigures, Mapping[str, float]]:
        model.zero_grad(set_to_none=True)
        bundles = train_rows(with_copies(), GRPO(), 64)
        done = accumulate(model, bundles, RLSection(micro_batch_tokens=200))
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return done.loss, gradient, done.figures, batch_figures(bundles)

    loss, gradient, figures, batch = run()
    monkeypatch.setattr("overland.rl.batch.merged", list)
    loss_each, gradient_each, figures_each, batch_each = run()
    assert loss == pytest.approx(loss_each, abs=1e-6)  # weights are kept in float32
    assert (gradient - gradient_each).abs().max() < 1e-7 * gradient.abs().max() + 1e-8
    assert figures.means() | figures.by_part() == pytest.approx(figures_each.means() | figures_each.by_part(), rel=1e-6)
    assert batch["distinct_rows"] == batch_each["distinct_rows"] - 9
    assert batch["positions"] < batch_each["positions"]
    assert {k: batch[k] for k in ("rows", "trained_tokens", "positions_unshared")} == {
        k: batch_each[k] for k in ("rows", "trained_tokens", "positions_unshared")
    }


def test_a_prompt_of_one_token_has_nothing_to_share(model: Decoder) -> None:
    sample = Sample("a", (5, 6, 7), 1, (False, True, True), (0.0, -1.0, -1.0), 1.0)
    other = Sample("b", (5, 8), 1, (False, True), (0.0, -1.0), 0.0)
    bundles = train_rows([Group("toy", 0, "high", "t", (sample, other))], GRPO())
    assert isinstance(forward_for(model, bundles, torch.device("cpu")), WholeSamples)
    longer = train_rows(groups(), GRPO())
    assert isinstance(forward_for(model, longer, torch.device("cpu")), SharedPrompts)


def micro_batches(seed: int, tokens: int) -> list[MicroBatch]:
    parts = chunks(train_rows(groups(seed), GRPO()), tokens)
    return [collate(chunk, rows) for chunk in parts for rows in split(chunk, tokens)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), tokens=st.integers(1, 300))
def test_every_trained_token_is_in_exactly_one_micro_batch(seed: int, tokens: int) -> None:
    batches = micro_batches(seed, tokens)
    expected = {s.id: s for g in groups(seed) for s in g.samples}
    assert sorted(key for b in batches for key in b.keys) == sorted(expected)
    assert sum(len(b.target_N) for b in batches) == sum(s.trained_tokens for s in expected.values())
    for batch in batches:
        assert len(batch.keys) == 1 or batch.suffix_RS.numel() <= tokens
        assert batch.suffix_lengths == tuple(suffix_length(expected[key]) for key in batch.keys)


@given(seed=st.integers(0, 1000), count=st.integers(0, 12), world=st.integers(1, 4))
def test_ranks_get_every_bundle_once_and_about_as_many_positions(seed: int, count: int, world: int) -> None:
    bundles = train_rows(groups(seed, count), GRPO())
    dealt = shares(bundles, world)
    assert sorted(map(id, bundles)) == sorted(id(b) for part in dealt for b in part)
    loads = [sum(map(positions, part)) for part in dealt]
    assert max(loads) - min(loads) <= max(map(positions, bundles), default=0)


def test_targets_are_the_sampled_ids_and_never_an_observation() -> None:
    flat = {s.id: s for g in groups(3) for s in g.samples}
    for batch in micro_batches(3, 100):
        found: dict[str, list[int]] = {key: [] for key in batch.keys}
        for row, target in zip(batch.row_N.tolist(), batch.target_N.tolist(), strict=True):
            found[batch.keys[row]].append(target)
        for key, ids in found.items():
            assert ids == [token for token, trained in zip(flat[key].ids, flat[key].trained, strict=True) if trained]


def test_groups_without_variance_are_left_out_before_the_denominators() -> None:
    flat, varied = groups(1, 2)
    flat = flat.with_samples([Sample(**{**vars(s), "reward": 1.0}) for s in flat.samples])
    bundles = train_rows([flat, varied], GRPO())
    tokens = sum(s.trained_tokens for s in varied.samples)
    assert [row.sample.id for b in bundles for row in b.rows] == [s.id for s in varied.samples]
    assert all(row.weight == 1 / tokens for b in bundles for row in b.rows)
