"""Prefix reuse changes what is computed and counted, never what comes out."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids, tiny

from overland.engine import Engine, Generation, Sampling
from overland.engine.parting import common_length, parting_points
from overland.engine.pool import PagePool
from overland.model import Cache, Decoder

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


def filled(model: Decoder, ids: list[int]) -> Cache:
    cache = model.new_cache(1)
    with torch.inference_mode():
        model(torch.tensor([ids]), cache=cache)
    return cache


def put(pool: PagePool, ids: list[int], salt: str = "") -> None:
    pool.put(ids, filled(MODEL, ids), 0, salt)


def test_a_small_pool_forgets_the_least_recently_used() -> None:
    pool = PagePool(MODEL, 10, page_size=2)
    put(pool, [1, 2, 3, 4])
    put(pool, [5, 6, 7])
    assert pool.longest([1, 2, 3, 4, 0], "") == 4  # now the more recent
    put(pool, [8, 9, 8, 9])
    assert pool.longest([5, 6, 7, 0], "") == 0
    assert pool.longest([1, 2, 3, 4, 0], "") == 4
    assert pool.longest([1, 2, 3, 4], "") == 0  # a proper prefix: one token is left to run
    assert pool.longest([1, 2, 3, 4, 0], "other") == 0
    put(pool, list(range(11)))
    assert pool.tokens == 8


def test_prefixes_that_begin_alike_share_their_pages() -> None:
    pool = PagePool(MODEL, 1000, page_size=8)
    put(pool, LONG[:20])
    one = pool.bytes
    assert (pool.pages, one) == (2, 20 * pool.token_bytes + pool.state_bytes)
    put(pool, [*LONG[:20], 1, 2, 3, 4, 5])
    assert pool.pages == 3
    assert pool.bytes == one + (8 + 1) * pool.token_bytes + pool.state_bytes
    pool.shrink(pool.bytes - 1)  # the first, older one goes; its pages stay with the second
    assert pool.longest([*LONG[:20], 1, 2, 3, 4, 5, 6], "") == 25
    assert pool.longest([*LONG[:20], 9], "") == 0
    pool.shrink(0)
    assert (pool.pages, pool.checkpoints, pool.bytes, pool.tokens) == (0, 0, 0, 0)


lengths = st.integers(1, 30)


@settings(max_examples=40)
@given(
    stored=st.lists(st.tuples(st.integers(0, 1), lengths), max_size=8),
    asked=st.tuples(st.integers(0, 1), lengths),
    page_size=st.sampled_from([1, 3, 8, 512]),
    keep=st.floats(0, 1),
)
def test_a_hit_is_the_longest_prefix_still_stored_and_holds_what_was_put(
    stored: list[tuple[int, int]], asked: tuple[int, int], page_size: int, keep: float
) -> None:
    stems = [random_ids(31, seed=3).tolist(), random_ids(31, seed=4).tolist()]
    stems[1][:12] = stems[0][:12]
    pool = PagePool(MODEL, 10_000, page_size)
    for stem, n in stored:
        put(pool, stems[stem][:n])
    pool.shrink(int(keep * pool.bytes))
    assert pool.bytes == sum(
        t.numel() * t.element_size()
        for tensors in [p.slots for p in pool._pages.values()] + [c.rest + c.states for c in pool._checkpoints.values()]
        for t in tensors
    )
    ids = stems[asked[0]][: asked[1]]
    n, cache = pool.take(ids, "")
    wanted = {len(stems[s][:m]) for s, m in stored if stems[s][:m] == ids[:m] and m < len(ids)}
    assert n in wanted | {0}
    if keep == 1:
        assert n == max(wanted, default=0)
    if n:
        assert cache is not None
        fresh = filled(MODEL, ids[:n])
        for mine, theirs in zip(cache.layers, fresh.layers, strict=True):
            for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
                assert torch.allclose(a, b[:, :n] if mine.slotted else b)


ids = st.lists(st.integers(0, 2), max_size=8)


@given(prompts=st.lists(ids, max_size=5), shortest=st.integers(1, 4))
def test_parting_points_are_the_longest_shared_beginnings(prompts: list[list[int]], shortest: int) -> None:
    wanted = []
    for i, a in enumerate(prompts):
        n = max((common_length(a, b) for j, b in enumerate(prompts) if j != i), default=0)
        wanted.append(n if n >= shortest else 0)
    assert parting_points(prompts, shortest) == wanted


def test_decoding_leaves_a_stored_prefix_untouched() -> None:
    mine = engine()
    for n in range(3):
        done(mine, [*LONG, n])

    def held() -> list[torch.Tensor]:
        n, cache = mine.pool.take([*LONG, 0], "")
        assert n == 50
        assert cache is not None
        return [t for layer in cache.layers for t in layer.tensors()]

    before = held()
    done(mine, [*LONG, 2, 2], Sampling(seed=1, max_tokens=30))
    assert all(torch.equal(a, b) for a, b in zip(before, held(), strict=True))
