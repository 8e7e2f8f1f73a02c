"""Starting and stopping: a port that is free, one line when ready, and an end that loses no running request."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from overland.chat import Template, Tokenizer
from overland.engine import AsyncEngine
from overland.errors import OverlandError
from overland.model.vision.preprocess import Preprocessing
from overland.serve.app import create_app
from overland.serve.settings import ServeSection

FAREWELL = 2  # seconds for a cancelled request to tell its client, before its connection is cut
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    template: Template,
    *,
    model_name: str,
    settings: ServeSection | None = None,
    preprocessing: Preprocessing | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serves until SIGTERM or Ctrl-C, then lets running requests finish (at most `settings.drain_seconds`).

    `preprocessing` is as in `create_app`.
    `announce` gets one line with the URL once requests are taken. Raises OverlandError when the port is in use.
    """
    settings = settings or ServeSection()
    listener = listen(settings.host, settings.port)
    app = create_app(engine, tokenizer, template, model_name=model_name, settings=settings, preprocessing=preprocessing)
    if settings.host not in LOOPBACK and not os.environ.get(settings.api_key_env):
        print(
            f"serve.host is {settings.host} and no API key is set: anyone who reaches this machine can use the model. "
            f"Set {settings.api_key_env}.",
            file=sys.stderr,
        )
    with listener:
        server = _Server(app, settings, lambda url: announce(f"{model_name} is ready at {url}"))
        server.run(sockets=[listener])


@contextmanager
def background(app: FastAPI, settings: ServeSection | None = None) -> Iterator[str]:
    """Serves in a thread of its own while the block runs; gives the URL. Port 0 (any free one) unless settings say."""
    settings = settings or ServeSection(port=0)
    ready = threading.Event()
    url: list[str] = []

    def started(at: str) -> None:
        url.append(at)
        ready.set()

    with listen(settings.host, settings.port) as listener:
        server = _Server(app, settings, started)

        def work() -> None:
            try:
                server.run(sockets=[listener])
            finally:
                ready.set()

        thread = threading.Thread(target=work, name="overland-serve", daemon=True)
        thread.start()
        ready.wait()
        if not url:
            raise OverlandError("the server did not start; its log says why")
        try:
            yield url[0]
        finally:
            server.stop()
            thread.join()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OverlandError that names the address and what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OverlandError(f"port {port} on {host} is in use: choose another, or --port 0") from None
        raise OverlandError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn that says when it is ready, drains on a signal, and then returns instead of dying of it."""

    def __init__(self, app: FastAPI, settings: ServeSection, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=settings.drain_seconds + FAREWELL,
            )
        )
        self._generator = app.state.generator
        self._drain_seconds = settings.drain_seconds
        self._ready = ready

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; then the conversation log is put where it belongs."""
        await super().shutdown(sockets)
        if self._generator.log is not None:
            await asyncio.to_thread(self._generator.log.close)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.stop()

    def stop(self) -> None:
        """Drains, from any thread: no new requests, and a deadline for those that run."""
        if not self.should_exit:
            self._generator.admission.draining = True
            self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_seconds, self._generator.cancel_all)
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but does not raise the signal again afterwards: a drained server ends with success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
