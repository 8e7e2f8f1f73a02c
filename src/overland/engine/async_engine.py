"""The engine behind asyncio: steps run in one worker thread, tokens arrive in each caller's own queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from overland.engine.constraint import Constraint
from overland.engine.engine import Emitted, Engine, PauseMode
from overland.engine.images import Picture
from overland.engine.request import Budget, Generation, Sampling

T = TypeVar("T")


class AsyncEngine:
    """Many concurrent streams over one Engine. Idle it sleeps; nothing spins."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._queues: dict[int, asyncio.Queue[Emitted | BaseException | None]] = {}
        self._pool = ThreadPoolExecutor(1, "engine", initializer=torch.set_num_threads, initargs=(1,))
        self._runner: asyncio.Task[None] | None = None

    def submit(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        budget: Budget | None = None,
        salt: str = "",
        *,
        images: Sequence[Picture] = (),
        constraint: Constraint | None = None,
        priority: int = 0,
        deadline: float | None = None,
        routed_from: int | None = None,
    ) -> Stream:
        """Queue a request and return its stream. Raises UsageError as Engine.submit does."""
        generation = self.engine.submit(
            ids,
            sampling,
            budget,
            salt,
            images=images,
            constraint=constraint,
            priority=priority,
            deadline=deadline,
            routed_from=routed_from,
        )
        queue: asyncio.Queue[Emitted | BaseException | None] = asyncio.Queue()
        self._queues[id(generation)] = queue
        self._wake()
        return Stream(self, generation, queue)

    def cancel(self, generation: Generation) -> None:
        """Stop a request; its row is free within one step."""
        self.engine.cancel(generation)
        queue = self._queues.pop(id(generation), None)
        if queue is not None:
            queue.put_nowait(None)

    def cancel_all(self) -> None:
        """Stop every request; their streams end."""
        self.engine.cancel_all()
        for queue in self._queues.values():
            queue.put_nowait(None)
        self._queues.clear()

    async def call(self, work: Callable[[Engine], T]) -> T:
        """Run `work(engine)` between two steps, in the engine's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, self.engine)

    async def pause(self, mode: PauseMode = "abort") -> None:
        """Engine.pause; in the mode `wait` returns once what ran has ended."""
        await self.call(lambda engine: engine.pause(mode))
        if mode == "abort":
            self.cancel_all()
        if mode == "wait" and self._runner is not None:
            await asyncio.wait([self._runner])

    async def resume(self) -> None:
        """Go on with what was frozen and held."""
        await self.call(Engine.resume)
        self._wake()

    def _wake(self) -> None:
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run())

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
                for emitted in await loop.run_in_executor(self._pool, self._step):
                    queue = self._queues.get(id(emitted.generation))
                    if queue is None:
                        continue
                    queue.put_nowait(emitted)
                    if emitted.generation.done:
                        queue.put_nowait(None)
                        del self._queues[id(emitted.generation)]
                for ended in self.engine.take_ended():
                    if (queue := self._queues.pop(id(ended), None)) is not None:
                        queue.put_nowait(None)
        except BaseException as error:
            self._fail(error)
            raise

    def _step(self) -> list[Emitted]:
        emitted = self.engine.step()
        if not self.engine.busy:
            self.engine.tidy()
        return emitted

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
