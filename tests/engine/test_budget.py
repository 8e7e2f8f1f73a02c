"""A budget forces its ids exactly at the limit, marks them, and leaves alone what came in time."""

from __future__ import annotations

import pytest
from tiny import random_ids

from overland.engine import Budget, Sampling
from overland.errors import UsageError

from .naive import alone, engine, greedy, logprobs_after

PROMPT = random_ids(6).tolist()
WHOLE = greedy(PROMPT, 12)
NEVER = next(token for token in range(32) if token not in WHOLE)


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_ids_are_forced_exactly_at_the_limit(limit: int) -> None:
    row = alone(PROMPT, Sampling(temperature=0, max_tokens=limit + 5), Budget(limit, NEVER, (NEVER, 3)))
    assert row.ids[: limit + 2] == [*WHOLE[:limit], NEVER, 3]
    assert row.forced == [False] * limit + [True, True] + [False] * 3
    assert row.ids == [*row.ids[: limit + 2], *greedy([*PROMPT, *row.ids[: limit + 2]], 3)]
    for n, (token, logprob) in enumerate(zip(row.ids, row.logprobs, strict=True)):
        assert logprob == pytest.approx(logprobs_after([*PROMPT, *row.ids[:n]])[token].item(), abs=1e-5)


@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_nothing_is_forced_once_the_awaited_token_came(limit: int) -> None:
    until = WHOLE[limit - 1]  # the last one in time, or an earlier one that is the same token
    row = alone(PROMPT, Sampling(temperature=0, max_tokens=12), Budget(limit, until, (NEVER,)))
    assert row.ids == WHOLE
    assert not any(row.forced)


def test_the_awaited_token_one_too_late_is_too_late() -> None:
    late = next(n for n in range(1, 12) if WHOLE[n] not in WHOLE[:n])
    row = alone(PROMPT, Sampling(temperature=0, max_tokens=12), Budget(late, WHOLE[late], (NEVER,)))
    assert row.ids[late] == NEVER
    assert row.forced.count(True) == 1


def test_a_stop_id_among_the_forced_ends_only_behind_them() -> None:
    row = alone(PROMPT, Sampling(temperature=0, max_tokens=12, stop_ids=(NEVER,)), Budget(2, 31, (NEVER, 4, NEVER)))
    assert row.ids == [*WHOLE[:2], NEVER, 4, NEVER]
    assert row.finish_reason == "stop"


def test_max_tokens_cuts_forced_ids_too() -> None:
    row = alone(PROMPT, Sampling(temperature=0, max_tokens=3), Budget(2, NEVER, (NEVER, 4)))
    assert row.ids == [*WHOLE[:2], NEVER]
    assert row.finish_reason == "length"


def test_a_budget_moves_neither_a_neighbours_samples_nor_the_own_stream() -> None:
    mine = engine()
    plain, other = Sampling(seed=4, max_tokens=10), Sampling(seed=5, max_tokens=10)
    budgeted = mine.submit(PROMPT, plain, Budget(3, NEVER, (NEVER,)))
    neighbour = mine.submit(PROMPT, other)
    mine.run([budgeted, neighbour])
    assert neighbour.ids == alone(PROMPT, other).ids
    assert budgeted.ids[:3] == alone(PROMPT, plain).ids[:3]


def test_a_forced_token_outside_the_truncated_distribution_has_a_finite_logprob() -> None:
    row = alone(PROMPT, Sampling(top_k=1, temperature=2.0, max_tokens=2), Budget(1, NEVER, (NEVER,)))
    wanted = (logprobs_after([*PROMPT, row.ids[0]]) / 2).log_softmax(-1)[NEVER]
    assert row.logprobs == pytest.approx([0.0, wanted.item()], abs=1e-5)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="budget limit = -1"):
        Budget(-1, 0, ())
