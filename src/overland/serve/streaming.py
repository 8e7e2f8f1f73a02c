"""Server-sent events, and what to do when the client goes away: stop generating."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""


COMMENT = b": still working\n\n"
"""An event stream's comment: clients skip it, and what stands between sees that the stream lives."""

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON without spaces; made once, because json.dumps makes an encoder for every call with such options."""


def sse(data: Any, event: str | None = None) -> bytes:
    """One event. A text goes out as it is, anything else as compact JSON."""
    text = data if isinstance(data, str) else compact(data)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


async def unless_gone(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, cancelling it as soon as the client disconnects. Raises ClientGone then."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer_unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """`unless_gone` for a request whose body has been read."""
    return await unless_gone(request.receive, work)


class EventStream(Response):
    """Sends encoded events as they come; closes their generator when the client leaves. `done` is always called."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], headers: dict[str, str], done: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._done = done
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            return
        finally:
            self._done()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})


async def merge(streams: list[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the stream, item) in the order they come; the first failure ends them all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Any, BaseException | None, bool]] = asyncio.Queue(maxsize=64)

    async def pump(number: int, stream: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(stream) as source:
                async for item in source:
                    await queue.put((number, item, None, False))
            await queue.put((number, None, None, True))
        except Exception as error:
            await queue.put((number, None, error, True))

    tasks = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            number, item, error, last = await queue.get()
            if error is not None:
                raise error
            if last:
                left -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
