"""A sandboxed process seen from outside: its pipes, its end, and the certainty that nothing of it is left.

Plain pipes and a pidfd on the event loop, no thread for each child. The end is the end of the *process*: a background
child that holds the pipe open never makes a reader wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time

from overland.agent.sandbox import rlimits
from overland.agent.sandbox.base import Launch, SandboxLimits
from overland.agent.sandbox.cgroup import Group
from overland.agent.sandbox.identity import tool
from overland.errors import OverlandError

READ_SIZE = 1 << 16
CLOSE_SECONDS = 5.0
DIED = b""


class Child:
    """One started launch. Read with `read()` until it gives b"" (the process ended and its output is drained)."""

    def __init__(self, launch: Launch, limits: SandboxLimits, merge_stderr: bool) -> None:
        self.group = Group(limits.memory_bytes, limits.processes)
        try:
            self._spawn(launch, limits, merge_stderr)
        except BaseException:
            self.group.remove()
            raise
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._pidfd = os.pidfd_open(self.process.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.set_blocking(fd, False)

    def _spawn(self, launch: Launch, limits: SandboxLimits, merge_stderr: bool) -> None:
        passed: list[int] = []
        try:
            for block in launch.data:
                self._hand_over(block, passed)
            named = {f"{{fd[{number}]}}": str(fd) for number, fd in enumerate(passed)}
            if launch.options:
                block = "".join(named.get(word, word) + "\0" for word in launch.options).encode()
                named["{options}"] = str(self._hand_over(block, passed))
            argv = [named.get(word, word) for word in launch.argv]
            joins = "".join(f"echo 0 >'{d}/cgroup.procs' || exit 125; " for d in self.group.directories)
            shell = tool("sh") or "/bin/sh"
            script = f'{joins}{rlimits.outer(limits)} || exit 125; exec "$@"'
            self.process = subprocess.Popen(
                [shell, "-c", script, "overland", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge_stderr else subprocess.PIPE,
                bufsize=0,
                env=launch.env,
                cwd=launch.cwd or "/",
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError as error:
            raise OverlandError(f"the sandbox could not be started: {error}") from error
        finally:
            for fd in passed:
                os.close(fd)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin.fileno()
        self.stdout = self.process.stdout.fileno()
        self.stderr = self.process.stderr.fileno() if self.process.stderr else -1

    @staticmethod
    def _hand_over(block: bytes, passed: list[int]) -> int:
        """A descriptor to read `block` from. Every block is smaller than a pipe's buffer, so writing cannot wait."""
        reader, writer = os.pipe()
        passed.append(reader)
        with open(writer, "wb") as pipe:
            pipe.write(block)
        return reader

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.returncode = self.process.wait()
        if not self._ended.done():
            self._ended.set_result(None)

    async def _readable(self, fd: int) -> None:
        """Waits until `fd` has data or the process has ended."""
        ready = self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(fd, wake)
        try:
            await asyncio.wait((ready, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_reader(fd)

    async def read(self, fd: int | None = None) -> bytes:
        """The next piece of output; `DIED` once the process is gone and everything it wrote was read."""
        fd = self.stdout if fd is None else fd
        while True:
            was_alive = self.alive
            try:
                chunk = os.read(fd, READ_SIZE)
            except BlockingIOError:
                if not was_alive:
                    return DIED  # a survivor may still hold the pipe; the process itself is gone
                await self._readable(fd)
                continue
            if chunk:
                return chunk
            if self.alive:
                await self._ended
            return DIED

    async def write(self, data: bytes, close: bool = False) -> None:
        """Writes all of `data`; a process that ends meanwhile is not an error here (reading tells)."""
        view = memoryview(data)
        try:
            while view and self.alive:
                try:
                    view = view[os.write(self.stdin, view) :]
                except BlockingIOError:
                    await self._writable()
        except BrokenPipeError:
            pass
        if close:
            self._close_fd("stdin")

    async def _writable(self) -> None:
        ready = self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_writer(self.stdin, wake)
        try:
            await asyncio.wait((ready, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_writer(self.stdin)

    def _close_fd(self, name: str) -> None:
        pipe = getattr(self.process, name)
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(OSError):
                pipe.close()

    def kill(self) -> None:
        """SIGKILL to the sandbox and whatever its group still holds. The pid namespace dies with its init."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.group.kill()

    async def close(self) -> None:
        """Ends everything and waits for it, at most `CLOSE_SECONDS`. May be called twice."""
        if self._pidfd < 0:
            return
        pidfd = self._pidfd
        self._close_fd("stdin")
        deadline = time.monotonic() + CLOSE_SECONDS
        self.kill()
        try:
            if self.alive:
                await asyncio.wait((self._ended,), timeout=CLOSE_SECONDS)
            while not self.group.remove() and time.monotonic() < deadline:
                self.group.kill()
                await asyncio.sleep(0.002)
        finally:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._pidfd = -1
            self.process.poll()
            for name in ("stdout", "stderr"):
                self._close_fd(name)
            if not self.group.remove():
                self.group.kill()
