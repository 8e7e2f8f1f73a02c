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
    """Collects one request from every open session, then runs the engine until all of them are done."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions: dict[int, Session] = {}
        self._waiting: dict[int, _Request] = {}
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
        if session is None or self._sessions.get(session.number) is not session or session.number in self._waiting:
            async with self.session():  # a single question outside any episode
                return await self.generate(ids, sampling, budget, salt)
        request = _Request(ids, sampling, budget, salt, asyncio.get_running_loop().create_future())
        self._waiting[session.number] = request
        self._check()
        try:
            return await request.done
        finally:
            if self._waiting.get(session.number) is request:
                del self._waiting[session.number]
            if request.handle is not None and not request.handle.done:
                self.engine.cancel(request.handle)

    def _complete(self) -> bool:
        return bool(self._sessions) and all(number in self._waiting for number in self._sessions)

    def _check(self) -> None:
        """Starts a wave once every open session waits."""
        if self._pump is None and self._complete():
            self._pump = asyncio.get_running_loop().create_task(self._run_wave())

    async def _run_wave(self) -> None:
        if not self._complete():  # tasks that were started together with the last one opened sessions meanwhile
            self._pump = None
            return
        wave = [self._waiting[number] for number in sorted(self._waiting)]
        try:
            for request in wave:
                request.handle = self.engine.submit(request.ids, request.sampling, request.budget, request.salt)
            while any(not request.handle.done and not request.done.done() for request in wave):
                self.engine.step()
                await asyncio.sleep(0)  # deadlines and Ctrl-C get their chance between steps
        except Exception as error:
            for request in wave:
                if not request.done.done():
                    request.done.set_exception(error)
            return
        finally:
            self._waiting = {n: request for n, request in self._waiting.items() if request not in wave}
            self._pump = None
        for request in wave:
            if not request.done.done():
                request.done.set_result(request.handle)
        self._check()
