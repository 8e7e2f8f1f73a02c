"""Pieces of prompts, one memory for rows and prefixes, preemption, forks, deadlines."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tiny import random_ids

from overland.engine import Engine, Generation, Sampling
from overland.errors import UsageError

from .naive import MODEL, engine, greedy

GREEDY = Sampling(temperature=0, max_tokens=8)
LONG = random_ids(60, seed=1).tolist()


def roomy(rows: float, tokens: int = 96, **options: Any) -> Engine:
    """An engine whose memory holds so many rows of so many tokens."""
    pool = engine().pool
    size = tokens * pool.token_bytes + pool.state_bytes
    return Engine(MODEL, pool_bytes=int(rows * size), page_size=8, **options)


def test_who_decodes_goes_on_while_a_long_prompt_runs_in_pieces() -> None:
    mine = Engine(MODEL, prefill_chunk=8, page_size=8)
    first = mine.submit([1, 2, 3], Sampling(temperature=0, max_tokens=30))
    mine.step()
    long = mine.submit(LONG, GREEDY)
    spoken = []
    while not long.ids:
        before = len(first.ids)
        mine.step()
        spoken.append(len(first.ids) - before)
    assert spoken == [1] * 8  # a token a step, while 60 tokens ran 8 at a time
    mine.run([first, long])
    assert (first.ids, long.ids) == (greedy([1, 2, 3], 30), greedy(LONG, 8))


def test_a_short_prompt_overtakes_a_long_one_which_is_not_starved() -> None:
    mine = Engine(MODEL, prefill_chunk=8, page_size=8, max_batch=64)
    long = mine.submit(LONG, GREEDY)
    mine.step()
    steps = 0
    while not long.ids:
        short = mine.submit(random_ids(3, seed=steps).tolist(), GREEDY)
        mine.step()
        assert len(short.ids) == 1  # at once, whatever else waits
        steps += 1
    assert steps <= 60 // 4 + 1  # half of every step was the long one's


def test_prompts_in_pieces_leave_checkpoints_at_page_ends() -> None:
    mine = Engine(MODEL, prefill_chunk=16, page_size=16)
    mine.run([mine.submit(LONG, GREEDY)])
    row = mine.submit([*LONG[:50], 3, 3], GREEDY)
    mine.run([row])
    assert row.cached_tokens == 48
    assert row.ids == greedy(row.prompt_ids, 8)


def test_prompts_that_begin_alike_and_come_together_run_their_beginning_once() -> None:
    mine = Engine(MODEL, prefill_chunk=16, page_size=512)
    rows = [mine.submit([*LONG, *random_ids(4, seed=n).tolist()], GREEDY) for n in range(4)]
    rows += [mine.submit(rows[0].prompt_ids, GREEDY)]
    mine.run(rows)
    assert [row.ids for row in rows] == [greedy(row.prompt_ids, 8) for row in rows]
    assert mine.stats()["prompt_tokens"] == 60 + 4 * 4


@pytest.mark.parametrize("swap", [None, 0])
def test_rows_without_room_are_preempted_and_resume_exactly(swap: int | None) -> None:
    mine = roomy(2.2, tokens=32, swap_bytes=swap)
    prompts = [random_ids(10, seed=n).tolist() for n in range(4)]
    asked = [Sampling(temperature=t, seed=n, max_tokens=22) for n, t in enumerate((0.0, 1.0, 0.0, 1.0))]
    rows = [mine.submit(ids, sampling) for ids, sampling in zip(prompts, asked, strict=True)]
    most = 0.0
    while any(not row.done for row in rows):
        mine.step()
        most = max(most, mine.stats()["cache_usage"])
    assert mine.stats()["preemptions"] > 0
    assert most <= 1
    for row, ids, sampling in zip(rows, prompts, asked, strict=True):
        alone = engine().submit(ids, sampling)
        one = engine()
        alone = one.submit(ids, sampling)
        one.run([alone])
        assert row.ids == alone.ids
        assert row.logprobs == pytest.approx(alone.logprobs, abs=1e-6)


def test_stored_prefixes_give_way_to_rows() -> None:
    mine = roomy(1.5)
    stop = greedy(LONG, 8)[-1]
    mine.run([mine.submit(LONG, Sampling(temperature=0, max_tokens=20, stop_ids=(stop,)))])
    assert mine.stats()["prefix_tokens"] > 0
    row = mine.submit(random_ids(80, seed=2).tolist(), GREEDY)
    mine.run([row])
    assert row.finish_reason == "length"
    assert mine.stats()["evictions"] > 0
    assert mine.stats()["preemptions"] == 0


def test_an_urgent_request_takes_the_place_of_a_less_urgent_row() -> None:
    mine = roomy(4, max_batch=1)
    idle = mine.submit([1, 2, 3], Sampling(temperature=0, max_tokens=20), priority=1)
    mine.step()
    urgent = mine.submit([4, 5], GREEDY, priority=0)
    mine.run([urgent])
    assert not idle.done
    mine.run([idle])
    assert (idle.ids, urgent.ids) == (greedy([1, 2, 3], 20), greedy([4, 5], 8))


def test_a_prompt_larger_than_the_memory_is_refused_and_a_row_that_fills_it_ends() -> None:
    mine = roomy(1, tokens=40)
    with pytest.raises(UsageError, match="more than the cache holds"):
        mine.submit(LONG, GREEDY)
    row = mine.submit(LONG[:30], Sampling(temperature=0, max_tokens=60))
    mine.run([row])
    assert row.finish_reason == "length"
    assert row.ids == greedy(LONG[:30], len(row.ids))
    assert 8 <= len(row.ids) <= 11


@pytest.mark.parametrize("at", ["waiting", "prompt", "row"])
def test_a_fork_goes_on_from_where_its_parent_is(at: str) -> None:
    mine = Engine(MODEL, prefill_chunk=20)
    parent = mine.submit(LONG, Sampling(seed=3, max_tokens=12))
    for _ in range({"waiting": 0, "prompt": 2, "row": 5}[at]):
        mine.step()
    said = list(parent.ids)
    twins = mine.fork(parent, [3, 4, 5])
    mine.run([parent, *twins])
    assert all(twin.ids[: len(said)] == said for twin in twins)
    assert len({tuple(twin.ids) for twin in twins}) > 1
    lone = Engine(MODEL)
    again = lone.submit(LONG, Sampling(seed=3, max_tokens=12))
    lone.run([again])
    assert parent.ids == again.ids  # it does not notice


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    mine = Engine(MODEL, max_batch=1)
    running = mine.submit([1, 2], Sampling(temperature=0, max_tokens=50))
    mine.step()
    running.deadline = time.monotonic() - 1
    waiting = mine.submit([1, 2], GREEDY, deadline=time.monotonic() - 1)
    mine.step()
    assert [g.finish_reason for g in (running, waiting)] == ["deadline", "deadline"]
    assert set(map(id, mine.take_ended())) == {id(running), id(waiting)}
    assert not mine.busy


def test_what_is_held_in_a_pause_runs_after_it() -> None:
    mine = engine()
    before = mine.submit([1, 2], GREEDY)
    mine.step()
    mine.pause("wait")
    held = mine.submit([3], GREEDY)
    while mine.busy:
        mine.step()
    assert before.done
    assert not held.ids
    mine.resume()
    mine.run([held])
    assert held.ids == greedy([3], 8)


def test_penalties_and_bias_change_what_is_said() -> None:
    def said(**fields: Any) -> Generation:
        mine = engine()
        row = mine.submit([1, 2, 3], Sampling(temperature=0, max_tokens=20, **fields))
        mine.run([row])
        return row

    assert len(set(said(frequency_penalty=100.0).ids)) == 20
    assert set(said(logit_bias=((7, 1000.0),)).ids) == {7}
    assert 7 not in said(logit_bias=((7, -1000.0),)).ids
    top = said(top_logprobs=3)
    assert [best[0][0] for best in top.top] == top.ids
    assert [best[0][1] for best in top.top] == pytest.approx(top.logprobs)
