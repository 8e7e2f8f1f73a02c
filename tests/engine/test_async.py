"""The engine behind asyncio: streams, cancellations, failures; nothing is left running."""

from __future__ import annotations

import asyncio
import random

import pytest
from tiny import random_ids, tiny

from overland.engine import AsyncEngine, Generation, Sampling
from overland.errors import UsageError

from .naive import MODEL, alone, engine


def asked(n: int) -> list[tuple[list[int], Sampling]]:
    return [(random_ids(3 + n % 9, seed=n).tolist(), Sampling(seed=n, max_tokens=4 + n % 7)) for n in range(n)]


async def test_streams_give_what_the_engine_gives() -> None:
    served = AsyncEngine(engine(max_batch=3))
    requests = asked(8)

    async def read(ids: list[int], sampling: Sampling) -> Generation:
        stream = served.submit(ids, sampling)
        tokens = [emitted.token async for emitted in stream]
        assert tokens == stream.generation.ids
        return stream.generation

    results = await asyncio.gather(*(read(*request) for request in requests))
    assert [row.ids for row in results] == [alone(*request).ids for request in requests]
    assert not served.engine.busy
    again = await served.submit(*requests[0]).finish()  # an engine that fell asleep wakes up
    assert again.ids == results[0].ids
    await served.close()


async def test_many_streams_with_random_cancellations_leave_no_row() -> None:
    rng = random.Random(0)
    served = AsyncEngine(engine(max_batch=5))
    ended: list[Generation] = []

    async def read(ids: list[int], sampling: Sampling) -> None:
        stream, patience = served.submit(ids, sampling), rng.randint(0, 8)
        ended.append(stream.generation)
        iterator = aiter(stream)
        try:
            async for _ in iterator:
                patience -= 1
                if patience == 0:
                    break
        finally:
            await iterator.aclose()  # type: ignore[attr-defined]

    tasks = [asyncio.create_task(read(*request)) for request in asked(40)]
    for _ in tasks:
        await asyncio.sleep(0)
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    last = await served.submit([1, 2], Sampling(max_tokens=2)).finish()
    assert len(last.ids) == 2
    assert all(row.done for row in ended)
    assert {row.finish_reason for row in ended} == {"length", "cancelled"}
    served.engine.step()
    stats = served.engine.stats()
    assert (stats["running"], stats["waiting"]) == (0, 0)
    assert not served._queues
    for row in ended:
        assert row.ids == alone(row.prompt_ids, row.sampling).ids[: len(row.ids)]
    await served.close()


async def test_cancelling_a_generation_ends_its_stream() -> None:
    served = AsyncEngine(engine())
    stream = served.submit([1, 2, 3], Sampling(max_tokens=60))
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 3:
            served.cancel(stream.generation)
    assert stream.generation.finish_reason == "cancelled"
    assert 3 <= seen < 60
    await served.close()


async def test_an_error_in_a_step_reaches_every_stream_and_the_next_request_runs() -> None:
    served = AsyncEngine(engine(tiny(), max_batch=2))
    steps = 0

    def fail(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise MemoryError("no room for the cache")

    served.engine.model.register_forward_hook(fail)
    streams = [served.submit(ids, Sampling(max_tokens=30)) for ids, _ in asked(4)]
    results = await asyncio.gather(*(stream.finish() for stream in streams), return_exceptions=True)
    for stream, result in zip(streams, results, strict=True):
        assert isinstance(result, RuntimeError)
        assert isinstance(result.__cause__, MemoryError)
        assert stream.generation.finish_reason == "cancelled"
    healthy = await served.submit([1, 2, 3], Sampling(max_tokens=5, seed=1)).finish()
    assert healthy.ids == alone([1, 2, 3], Sampling(max_tokens=5, seed=1)).ids
    await served.close()


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_closing_cancels_what_runs(turns: int) -> None:
    served = AsyncEngine(engine())
    read, unread = (served.submit([1, 2, n], Sampling(max_tokens=80)) for n in (3, 4))
    waiter = asyncio.create_task(read.finish())
    for _ in range(turns):  # 0: before the engine's own task has begun
        await asyncio.sleep(0)
    await served.close()
    with pytest.raises(RuntimeError, match="the engine stopped"):
        await waiter
    assert read.generation.done
    assert unread.generation.done
    assert not served.engine.busy


async def test_a_bad_prompt_is_refused_at_once() -> None:
    served = AsyncEngine(engine(MODEL))
    with pytest.raises(UsageError, match="empty"):
        served.submit([], Sampling())
    assert not served._queues
    await served.close()
