"""What the engine generates against the full forward: tokens, log-probabilities, ends, independence of neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids, tiny

from overland.engine import Engine, Sampling
from overland.engine import engine as engine_module
from overland.errors import UsageError
from overland.model import load_model, save_model

from .naive import MODEL, alone, engine, greedy, logprobs_after

GREEDY = Sampling(temperature=0, max_tokens=12)


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    return [random_ids(n, seed=seed + i).tolist() for i, n in enumerate(lengths)]


def test_a_greedy_batch_is_the_argmax_of_the_full_forward() -> None:
    mine = engine(max_batch=4)
    rows = [mine.submit(ids, GREEDY) for ids in prompts([1, 3, 17, 40, 5, 40, 8])]
    mine.run(rows)
    for row in rows:
        assert row.ids == greedy(row.prompt_ids, 12)
        assert (row.finish_reason, row.prompt_tokens) == ("length", len(row.prompt_ids))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(temperature: float) -> None:
    row = alone(prompts([9])[0], Sampling(temperature=temperature, max_tokens=15, seed=3))
    for n, (token, logprob) in enumerate(zip(row.ids, row.logprobs, strict=True)):
        whole = logprobs_after(row.prompt_ids + row.ids[:n])
        wanted = (whole / (temperature or 1.0)).log_softmax(-1)[token]
        assert logprob == pytest.approx(wanted.item(), abs=1e-5)


def test_scores_are_the_log_probabilities_that_sampling_reported() -> None:
    row = alone(prompts([9])[0], Sampling(max_tokens=15, seed=3))
    scores = engine().score(row.prompt_ids + row.ids)
    assert scores[len(row.prompt_ids) - 1 :] == pytest.approx(row.logprobs, abs=1e-5)


NEIGHBOURS = [GREEDY, Sampling(top_k=2, top_p=0.3, seed=1), Sampling(temperature=3.0, max_tokens=2)]


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_request_does_not_depend_on_its_neighbours(neighbour: Sampling) -> None:
    drawn = [Sampling(seed=s, top_p=p, top_k=k, max_tokens=9) for s, p, k in [(7, 1, 0), (7, 0.9, 0), (8, 1, 5)]]
    settings = [GREEDY, *drawn]
    asked = list(zip(prompts([6, 33, 2, 12]), settings, strict=True))
    mine = engine(max_batch=5)
    rows = []
    for i, (ids, sampling) in enumerate(asked):
        rows.append(mine.submit(ids, sampling))
        for crowd in prompts([4, 19], seed=10 * i + 50):
            mine.submit(crowd, neighbour)
        mine.step()
    mine.run(rows)
    for row, (ids, sampling) in zip(rows, asked, strict=True):
        reference = alone(ids, sampling)
        assert row.ids == reference.ids
        assert row.logprobs == pytest.approx(reference.logprobs, abs=1e-5)


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    ids = prompts([5])[0]
    first, again, other = (alone(ids, Sampling(seed=seed, max_tokens=30)).ids for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_requests_with_one_prompt_are_forked_and_differ_by_seed() -> None:
    mine, ids = engine(), prompts([40])[0]
    rows = [mine.submit(ids, Sampling(seed=seed, max_tokens=8)) for seed in range(6)]
    mine.run(rows)
    assert mine.stats()["prompt_tokens"] == 40
    assert [row.ids for row in rows] == [alone(ids, row.sampling).ids for row in rows]


@settings(max_examples=15, deadline=None)
@given(temperature=st.sampled_from([0.0, 0.05, 0.2, 1.0]), count=st.integers(2, 10), longest=st.integers(1, 12))
def test_requests_that_have_said_the_same_are_computed_once(temperature: float, count: int, longest: int) -> None:
    mine = engine()
    sampling = Sampling(temperature=temperature, max_tokens=longest)
    rows = [mine.submit(prompts([20])[0], replace(sampling, seed=seed)) for seed in range(count)]
    mine.run(rows)
    for row in rows:
        reference = alone(row.prompt_ids, row.sampling)
        assert row.ids == reference.ids
        assert row.logprobs == pytest.approx(reference.logprobs, abs=1e-5)
    histories = {tuple(row.ids[:n]) for row in rows for n in range(1, longest)}  # the first token is the prompt's
    assert mine.stats()["decoded_lanes"] == len(histories)


def test_a_stop_id_ends_and_is_kept() -> None:
    ids = prompts([6])[0]
    whole = greedy(ids, 12)
    stop = next(token for token in whole if token != whole[0])
    row = alone(ids, Sampling(temperature=0, max_tokens=12, stop_ids=(stop, 31)))
    assert row.ids == whole[: whole.index(stop) + 1]
    assert row.finish_reason == "stop"


def test_an_answer_ends_at_max_tokens_and_at_the_end_of_the_context() -> None:
    assert len(alone(prompts([6])[0], Sampling(max_tokens=1)).ids) == 1
    mine = engine(context_length=20)
    row = mine.submit(prompts([15])[0], Sampling(max_tokens=100))
    mine.run([row])
    assert (len(row.ids), row.finish_reason) == (5, "length")
    assert engine().context_length == 96


@pytest.mark.parametrize(
    "ids, message",
    [([], "empty"), ([1] * 20, "20 tokens; the context holds 20"), ([32], r"outside 0\.\.31"), ([-1], "outside")],
)
def test_a_prompt_that_cannot_run_is_refused_before_anything_happens(ids: list[int], message: str) -> None:
    mine = engine(context_length=20)
    with pytest.raises(UsageError, match=message):
        mine.submit(ids, GREEDY)
    assert not mine.busy


@pytest.mark.parametrize(
    "field, value",
    [("temperature", -1), ("temperature", math.nan), ("top_p", 0), ("top_p", 1.5), ("top_k", -1), ("max_tokens", 0)],
)
def test_sampling_out_of_range_names_the_field(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_steps_report_every_token_once_in_order() -> None:
    mine = engine(max_batch=2)
    rows = [mine.submit(ids, GREEDY) for ids in prompts([4, 9, 3])]
    seen: dict[int, list[int]] = {id(row): [] for row in rows}
    while mine.busy:
        for emitted in mine.step():
            seen[id(emitted.generation)].append(emitted.token)
            assert emitted.generation.ids[: len(seen[id(emitted.generation)])] == seen[id(emitted.generation)]
    assert [seen[id(row)] for row in rows] == [row.ids for row in rows]
    assert mine.step() == []


def test_cancelling_frees_the_row_for_the_next_request() -> None:
    mine = engine(max_batch=1)
    first, second, third = (mine.submit(ids, GREEDY) for ids in prompts([4, 9, 3]))
    mine.step()
    mine.cancel(first)
    mine.cancel(second)  # still waiting
    mine.run([third])
    assert (first.finish_reason, len(first.ids)) == ("cancelled", 1)
    assert (second.finish_reason, second.ids) == ("cancelled", [])
    assert third.ids == greedy(third.prompt_ids, 12)
    mine.step()
    assert (mine.stats()["running"], mine.stats()["waiting"]) == (0, 0)
    mine.cancel(third)
    assert third.finish_reason == "length"


def test_rows_that_are_done_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, batches, forward = engine(), [], MODEL.forward

    def watched(ids: torch.Tensor, **options: Any) -> Any:
        batches.append(len(ids))
        return forward(ids, **options)

    monkeypatch.setattr(MODEL, "forward", watched)
    rows = [mine.submit(ids, GREEDY) for ids in prompts([4, 4, 4, 4])]
    mine.step()
    for row in rows[1:]:
        mine.cancel(row)
    mine.run(rows)
    assert batches == [4, *[1] * 11]
    mine.step()
    assert mine._batch.cache is None


@pytest.mark.parametrize("where", ["forward", "sample", "keep", "add"])
@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("whom", [[0], [4], range(5), range(6)])
def test_a_cancellation_in_the_middle_of_a_step_harms_nobody_else(
    where: str, when: int, whom: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it comes from another thread: right after a part of a step, with five requests first, then a sixth."""
    mine = engine(max_batch=8)
    rows = [mine.submit(ids, replace(GREEDY, max_tokens=12 - 2 * i)) for i, ids in enumerate(prompts([4, 5, 6, 7, 8]))]
    owner = {"sample": engine_module, "forward": MODEL}.get(where, mine._batch)
    part, calls, had = getattr(owner, where), 0, {}

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = part(*args, **options)
        for i in whom:
            if calls == when and i < len(rows):
                mine.cancel(rows[i])
                had[i] = len(rows[i].ids)
        return result

    monkeypatch.setattr(owner, where, interrupted)
    mine.step()
    rows.append(mine.submit(prompts([7], seed=9)[0], GREEDY))
    mine.run(rows)
    monkeypatch.undo()
    for i, row in enumerate(rows):
        if row.finish_reason == "cancelled":
            assert len(row.ids) == had[i]
            assert row.ids == greedy(row.prompt_ids, 12)[: len(row.ids)]
        else:
            assert row.ids == greedy(row.prompt_ids, row.sampling.max_tokens)
    mine.step()
    assert mine.stats()["running"] == 0


def test_weights_load_from_a_model_and_from_a_folder(tmp_path: object) -> None:
    other = tiny(torch.float32, seed=5)
    save_model(other, str(tmp_path))
    for source in (other, str(tmp_path)):
        mine = Engine(tiny(torch.float32))
        mine.load_weights(source, version=3)
        row = mine.submit(prompts([6])[0], GREEDY)
        mine.run([row])
        assert row.version == 3
        assert row.ids == greedy(row.prompt_ids, 12, other)
    with pytest.raises(UsageError, match="another config"):
        mine.load_weights(load_model("nano"), version=4)
