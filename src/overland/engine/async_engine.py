"""The engine behind asyncio: steps run in one worker thread, tokens arrive in each caller's own queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from overland.engine.engine import Emitted, Engine
from overland.engine.request import Budget, Generation, Sampling


class AsyncEngine:
    """Many concurrent streams over one Engine. Idle it sleeps; nothing spins."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._queues: dict[int, asyncio.Queue[Emitted | BaseException | None]] = {}
        self._pool = ThreadPoolExecutor(1, "engine", initializer=torch.set_num_threads, initargs=(1,))
        self._runner: asyncio.Task[None] | None = None

    def submit(self, ids: Sequence[int], sampling: Sampling, budget: Budget | None = None, salt: str = "") -> Stream:
        """Queue a request and return its stream. Raises UsageError as Engine.submit does."""
        generation = self.engine.submit(ids, sampling, budget, salt)
        queue: asyncio.Queue[Emitted | BaseException | None] = asyncio.Queue()
        self._queues[id(generation)] = queue
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return Stream(self, generation, queue)

    def stream(self, ids: Sequence[int], sampling: Sampling, budget: Budget | None = None, salt: str = "") -> Stream:
        """The same as `submit`, under the name that reads well in `async for`."""
        return self.submit(ids, sampling, budget, salt)

    def cancel(self, generation: Generation) -> None:
        """Stop a request; its row is free within one step."""
        self.engine.cancel(generation)
        queue = self._queues.pop(id(generation), None)
        if queue is not None:
            queue.put_nowait(None)

    async def close(self) -> None:
        """Cancel what runs and stop the worker thread."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._pool.shutdown(wait=True)
        self.engine.cancel_all()
        self._fail(asyncio.CancelledError())  # where the runner had not begun

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.engine.busy:
                for emitted in await loop.run_in_executor(self._pool, self.engine.step):
                    queue = self._queues.get(id(emitted.generation))
                    if queue is None:
                        continue
                    queue.put_nowait(emitted)
                    if emitted.generation.done:
                        queue.put_nowait(None)
                        del self._queues[id(emitted.generation)]
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """End every stream with `error`."""
        for queue in self._queues.values():
            queue.put_nowait(error)
        self._queues.clear()


class Stream:
    """The tokens of one request: `async for token in stream`; afterwards `.generation` is complete."""

    def __init__(
        self, engine: AsyncEngine, generation: Generation, queue: asyncio.Queue[Emitted | BaseException | None]
    ) -> None:
        self.generation = generation
        self._engine, self._queue = engine, queue

    async def __aiter__(self) -> AsyncIterator[Emitted]:
        try:
            while (item := await self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise RuntimeError("the engine stopped") from item
                yield item
        finally:
            if not self.generation.done:
                self._engine.cancel(self.generation)

    async def finish(self) -> Generation:
        """Wait for the last token."""
        async for _ in self:
            pass
        return self.generation
