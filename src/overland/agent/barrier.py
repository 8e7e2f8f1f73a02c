"""Many episodes, one engine, one order: the engine steps only when every open session waits for it.

What a batch holds then depends on what the episodes did and never on how long their tools took, so a run with the
same seeds gives the same tokens. Sessions must be open before the wave that they belong to begins: start the episodes
of a batch together (asyncio.gather), each entering its session first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overland.engine import Budget, Engine, Generation, Sampling


@dataclass
class Session:
    """One live episode. Requests of a wave are submitted in the order of `number`."""

    number: int


@dataclass(eq=False)
class _Request:
    ids: list[int]
    sampling: Sampling
    budget: Budget | None
    salt: str
    done: asyncio.Future[Generation]
    handle: Any = None


_current: ContextVar[Session | None] = ContextVar("overland_session", default=None)


class Barrier:
    """Collects a request from every open session, runs the engine until a share of them is done, and collects again.

    Waiting for the last of a wave would leave the engine with ever fewer rows; waiting for one would run its next
    prompt alone. At a quarter the batch stays full and prompts come in groups. The moment depends on the tokens alone.
    """

    SHARE = 0.25

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions: dict[int, Session] = {}
        self._waiting: dict[int, _Request] = {}
        self._running: dict[int, _Request] = {}
        self._next = 0
        self._pump: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def session(self, number: int | None = None) -> AsyncIterator[Session]:
        """Opens a session for the current task and what it awaits. A number makes the order the caller's."""
        if number is None or number in self._sessions:
            number = max([self._next, *(n + 1 for n in self._sessions)])
        self._next = max(self._next, number + 1)
        session = Session(number)
        self._sessions[number] = session
        token = _current.set(session)
        try:
            yield session
        finally:
            _current.reset(token)
            del self._sessions[number]
            self._check()

    async def generate(self, ids: list[int], sampling: Sampling, budget: Budget | None, salt: str = "") -> Generation:
        """Waits for the barrier, then for the engine. Cancelling frees the row."""
        session = _current.get()
        if session is None or self._sessions.get(session.number) is not session or self._asks(session.number):
            async with self.session():  # a single question outside any episode
                return await self.generate(ids, sampling, budget, salt)
        request = _Request(ids, sampling, budget, salt, asyncio.get_running_loop().create_future())
        self._waiting[session.number] = request
        self._check()
        try:
            return await request.done
        finally:
            for asked in (self._waiting, self._running):
                if asked.get(session.number) is request:
                    del asked[session.number]
            if request.handle is not None and not request.handle.done:
                self.engine.cancel(request.handle)

    def _asks(self, number: int) -> bool:
        return number in self._waiting or number in self._running

    def _complete(self) -> bool:
        return bool(self._sessions) and all(self._asks(number) for number in self._sessions)

    def _check(self) -> None:
        """Goes on once every open session waits for the engine."""
        if self._pump is None and self._complete():
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        if not self._complete():  # tasks that were started together with the last one opened sessions meanwhile
            self._pump = None
            return
        try:
            for number in sorted(self._waiting):
                request = self._running[number] = self._waiting.pop(number)
                request.handle = self.engine.submit(request.ids, request.sampling, request.budget, request.salt)
            enough = max(1.0, self.SHARE * len(self._running))
            while len(done := self._done()) < enough and len(done) < len(self._running):
                self.engine.step()
                await asyncio.sleep(0)  # deadlines and Ctrl-C get their chance between steps
        except Exception as error:
            for request in [*self._running.values(), *self._waiting.values()]:
                if not request.done.done():
                    request.done.set_exception(error)
            return
        finally:
            self._pump = None
        for number in done:
            request = self._running.pop(number)
            if not request.done.done():
                request.done.set_result(request.handle)
        self._check()

    def _done(self) -> list[int]:
        return [n for n, request in self._running.items() if request.handle.done or request.done.done()]
