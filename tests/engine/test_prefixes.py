"""Prefix reuse changes what is computed and counted, never what comes out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import random_ids, tiny

from overland.engine import Engine, Generation, Sampling
from overland.engine.prefixes import PrefixStore, common_length, parting_points, prefix_hashes
from overland.model import Cache

from .naive import MODEL, engine, greedy

GREEDY = Sampling(temperature=0, max_tokens=6)
LONG = random_ids(50, seed=1).tolist()


def done(mine: Engine, ids: list[int], sampling: Sampling = GREEDY, salt: str = "") -> Generation:
    row = mine.submit(ids, sampling, salt=salt)
    mine.run([row])
    return row


def test_a_conversation_goes_on_from_its_last_turn() -> None:
    mine = engine()
    stop = greedy(LONG, 6)[-1]
    ending = Sampling(temperature=0, max_tokens=20, stop_ids=(stop,))
    first = done(mine, LONG, ending)
    assert first.finish_reason == "stop"
    follow = [*LONG, *first.ids, 7, 8, 9]
    second = done(mine, follow)
    assert second.cached_tokens == len(LONG) + len(first.ids) - 1
    assert second.ids == greedy(follow, 6)
    third = done(mine, [*LONG, *first.ids, 1])  # the stored turn is still whole after its use
    assert third.cached_tokens == len(LONG) + len(first.ids) - 1
    assert third.ids == greedy([*LONG, *first.ids, 1], 6)


def test_what_several_prompts_begin_with_is_run_once() -> None:
    mine = engine()
    asked = [[*LONG, *random_ids(n, seed=n).tolist()] for n in (1, 4, 9)]
    rows = [mine.submit(ids, GREEDY) for ids in asked]
    mine.run(rows)
    assert [row.ids for row in rows] == [greedy(ids, 6) for ids in asked]
    assert [row.cached_tokens for row in rows] == [50, 50, 50]
    assert mine.stats()["prompt_tokens"] == 50 + 1 + 4 + 9
    assert mine.stats()["cached_tokens"] == 150


def test_a_later_prompt_finds_the_beginning_of_an_earlier_one() -> None:
    mine = engine()
    for n in range(3):
        row = done(mine, [*LONG, *random_ids(5, seed=n).tolist()])
    assert row.cached_tokens == 50
    assert row.ids == greedy(row.prompt_ids, 6)


def test_a_longer_shared_beginning_grows_from_a_shorter_one_and_leaves_it_whole() -> None:
    mine, longer = engine(), [*LONG, *random_ids(20, seed=2).tolist()]
    asked = [[[*LONG, 1], [*LONG, 2]], [[*longer, 3], [*longer, 4]], [[*LONG, 5, 6], [*longer, 7]]]
    for prompts, cached in zip(asked, [(50, 50), (70, 70), (50, 70)], strict=True):
        rows = [mine.submit(ids, GREEDY) for ids in prompts]
        mine.run(rows)
        assert tuple(row.cached_tokens for row in rows) == cached
        assert [row.ids for row in rows] == [greedy(ids, 6) for ids in prompts]
    assert mine.stats()["prompt_tokens"] == 50 + 2 + 20 + 2 + 3


def test_salts_do_not_share() -> None:
    mine = engine()
    for n in range(3):
        row = done(mine, [*LONG, *random_ids(5, seed=n).tolist()], salt=f"tenant {n}")
        assert row.cached_tokens == 0


def test_new_weights_drop_what_the_old_ones_computed() -> None:
    model, other = tiny(), tiny(seed=5)
    mine = Engine(model)
    for n in range(3):
        done(mine, [*LONG, n])
    assert mine.stats()["prefix_tokens"] > 0
    mine.load_weights(other, version=1)
    assert mine.stats()["prefix_tokens"] == 0
    row = done(mine, [*LONG, 9])
    assert (row.cached_tokens, row.version) == (0, 1)
    assert row.ids == greedy(row.prompt_ids, 6, other)


def test_a_request_that_ran_across_new_weights_leaves_nothing_behind() -> None:
    """Neither for later requests nor for one that was waiting, whether the version's number changed or not."""
    other = tiny(seed=5)

    def across(version: int, stop: int, follow: list[int]) -> tuple[Engine, Generation, Generation]:
        mine = Engine(tiny(), max_batch=1)
        running = mine.submit(LONG, Sampling(temperature=0, max_tokens=12, stop_ids=(stop,)))
        waiting = mine.submit(follow, GREEDY)
        mine.step()
        mine.step()
        mine.load_weights(other, version)
        mine.run([running])
        return mine, running, waiting

    _, unstopped, _ = across(1, -1, LONG)
    end = next(n for n in range(4, 12) if unstopped.ids[n] not in unstopped.ids[:n])
    for version in (0, 1):
        mine, running, waiting = across(version, unstopped.ids[end], [*LONG, *unstopped.ids[: end + 1], 3])
        assert (running.ids, running.finish_reason) == (unstopped.ids[: end + 1], "stop")
        later = mine.submit([*LONG, *running.ids, 4], GREEDY)
        mine.run([waiting, later])
        for row in (waiting, later):
            assert row.version == version
            assert row.ids == greedy(row.prompt_ids, 6, other)


def test_a_small_store_forgets_the_least_recently_used() -> None:
    def cache(n: int) -> Cache:
        row = MODEL.new_cache(1)
        row.lengths += n
        return row

    store = PrefixStore(10)
    store.put([1, 2, 3, 4], cache(4), "")
    store.put([5, 6, 7], cache(3), "")
    assert store.longest([1, 2, 3, 4, 0], "")[0] == 4  # now the more recent
    store.put([8, 9, 8, 9], cache(4), "")
    assert store.longest([5, 6, 7, 0], "") == (0, None)
    assert store.longest([1, 2, 3, 4, 0], "")[0] == 4
    assert store.longest([1, 2, 3, 4], "") == (0, None)  # a proper prefix: one token is left to run
    assert store.longest([1, 2, 3, 4, 0], "other") == (0, None)
    store.put(list(range(11)), cache(11), "")
    assert store.tokens == 8


ids = st.lists(st.integers(0, 2), max_size=8)


@given(prompts=st.lists(ids, max_size=5), shortest=st.integers(1, 4))
def test_parting_points_are_the_longest_shared_beginnings(prompts: list[list[int]], shortest: int) -> None:
    wanted = []
    for i, a in enumerate(prompts):
        n = max((common_length(a, b) for j, b in enumerate(prompts) if j != i), default=0)
        wanted.append(n if n >= shortest else 0)
    assert parting_points(prompts, shortest) == wanted


@given(a=ids, b=ids)
def test_hashes_are_those_of_the_prefix_alone(a: list[int], b: list[int]) -> None:
    n = common_length(a, b)
    assert prefix_hashes(a)[: n + 1] == prefix_hashes(b)[: n + 1]
    assert len(set(prefix_hashes(a) + prefix_hashes(b))) == len(a) + len(b) - n + 1


def test_decoding_leaves_a_stored_prefix_untouched() -> None:
    mine = engine()
    for n in range(3):
        done(mine, [*LONG, n])
    held, cache = mine._prefixes.longest([*LONG, 0], "")
    assert held == 50
    assert cache is not None
    before = [t.clone() for layer in cache.layers for t in vars(layer).values()]
    done(mine, [*LONG, 2, 2], Sampling(seed=1, max_tokens=30))
    after = [t for layer in cache.layers for t in vars(layer).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
