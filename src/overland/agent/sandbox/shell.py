"""One /bin/sh held open for a whole episode: variables, functions and the working directory live on between commands.

Protocol over the shell's own pipes: a command arrives as `command eval '...'` (quoted, so a syntax error is a failing
command and not the end of the shell), its input is /dev/null, and a line with a random mark and the exit code follows
it. End of the process is "the shell died": the caller is told and a new one is started in the same folder.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from pathlib import Path
from types import TracebackType

from overland.agent.sandbox import rlimits
from overland.agent.sandbox.base import ExecResult, Sandbox, SandboxLimits
from overland.agent.sandbox.child import DIED, Child
from overland.agent.sandbox.output import CappedOutput
from overland.agent.text import clean
from overland.errors import OverlandError, UsageError

START_SECONDS = 20.0
MAX_COMMAND_BYTES = 256 << 10
RESET = "a new shell was started: its variables and working directory are reset, files are kept"


def quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def frame(command: str, mark: str) -> bytes:
    """What is written to the shell for one command. The mark is octal in the text, so tracing cannot print it."""
    # `exec >file` inside must not take our own lines along, hence descriptor 3 for both.
    return (
        f"command eval {quote(command)} </dev/null >&3 2>&3\n"
        f"{{ command printf '\\036%s:%d\\036' {mark} \"$?\" >&3; }} 2>/dev/null\n"
    ).encode()


class MarkedReader:
    """Splits a stream at `\\x1eMARK:CODE\\x1e`, however the bytes are cut into pieces."""

    def __init__(self, mark: str, output: CappedOutput) -> None:
        self.pattern = re.compile(rb"\x1e" + mark.encode() + rb":(\d+)\x1e")
        self.reach = len(mark) + 8
        self.output = output
        self.pending = b""

    def feed(self, chunk: bytes) -> int | None:
        """The exit code once the mark has come; what follows it stays in `pending`."""
        self.pending += chunk
        found = self.pattern.search(self.pending)
        if found:
            self.output.add(self.pending[: found.start()])
            self.pending = self.pending[found.end() :]
            return int(found.group(1))
        if len(self.pending) > self.reach:
            self.output.add(self.pending[: -self.reach])
            self.pending = self.pending[-self.reach :]
        return None

    def finish(self) -> None:
        self.output.add(self.pending)
        self.pending = b""


class Shell:
    """A held-open shell in a sandbox. One command at a time; close it, or use it as `async with`."""

    def __init__(self, sandbox: Sandbox, workdir: Path, limits: SandboxLimits) -> None:
        self.sandbox = sandbox
        self.workdir = workdir
        self.limits = limits
        self.restarts = -1
        self._child: Child | None = None
        self._carry = b""
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def path(self) -> str:
        """The work directory as commands see it."""
        return self.sandbox.inside(self.workdir)

    @property
    def pid(self) -> int | None:
        """The host's id of the sandbox's outermost process; None where no shell runs."""
        return self._child.process.pid if self._child is not None else None

    async def start(self) -> None:
        """Starts the shell and waits until it answers. Raises OverlandError with what the sandbox said if not."""
        self.restarts += 1
        self._carry = b""
        prelude = f"{rlimits.inner(self.limits)}\nexec 3>&1\n"
        launch = self.sandbox.launch(["/bin/sh"], self.workdir, self.limits)
        self._child = Child(launch, self.limits, merge_stderr=True)
        try:
            await self._child.write(prelude.encode())
            result = await self._exchange(":", START_SECONDS, CappedOutput(4096))
        except BaseException:
            await self._stop()
            raise
        if result.rc != 0:
            await self._stop()
            raise OverlandError(f"the {self.sandbox.name} sandbox did not start: {result.text.strip() or result.note}")

    async def run(self, command: str, timeout: float | None = None, output_bytes: int | None = None) -> ExecResult:
        """Runs one command. Never raises for what the command does; a cancelled call stops the shell."""
        if self._closed:
            raise UsageError("this shell was closed")
        text = clean(command)
        if "\x00" in text or len(text.encode()) > MAX_COMMAND_BYTES:
            problem = "contains a NUL byte" if "\x00" in text else f"is longer than {MAX_COMMAND_BYTES} bytes"
            return ExecResult(2, b"", f"sh: the command {problem} and was not run\n".encode(), False, 0, 0.0)
        async with self._turn:
            if self._child is None:
                await self.start()
            output = CappedOutput(output_bytes or self.limits.output_bytes)
            try:
                result = await self._exchange(text, timeout or self.limits.command_seconds, output)
            except BaseException:
                await self._stop()
                raise
            if result.rc is None:
                await self._stop()
                await self.start()
                result = result.with_note(RESET)
            return result

    async def _exchange(self, command: str, seconds: float, output: CappedOutput) -> ExecResult:
        child = self._child
        assert child is not None
        started = time.monotonic()
        kills, refusals = child.group.kills(), child.group.refusals()
        mark = secrets.token_hex(8)
        reader = MarkedReader(mark, output)
        reader.pending = self._carry
        rc: int | None = None
        note, hit = "", None
        try:
            async with asyncio.timeout(seconds):
                await child.write(frame(command, mark))
                while rc is None:
                    chunk = await child.read()
                    if chunk == DIED:
                        note = f"the shell died (exit code {child.returncode})"
                        break
                    rc = reader.feed(chunk)
                    if rc is None and output.total > self.limits.flood_bytes:
                        note, hit = f"stopped after {output.total} bytes of output", "output"
                        break
        except TimeoutError:
            note, hit = f"stopped after {seconds:g} seconds", "time"
        if rc is None:
            reader.finish()
        self._carry = reader.pending
        if hit is None and child.group.kills() > kills:
            hit = "memory"
            note = f"{note}; " * bool(note) + f"out of memory: the limit is {self.limits.memory_bytes >> 20} MiB"
        elif hit is None and child.group.refusals() > refusals:
            # What filled the sandbox is still in it and goes on eating a core: end it with its shell.
            hit, rc = "processes", None
            note = f"stopped: too many processes, the limit is {self.limits.processes}"
        duration = time.monotonic() - started
        return ExecResult(rc, output.bytes(), b"", output.truncated, output.total, duration, hit, note)

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def close(self) -> None:
        """Ends the shell and every process it left behind. May be called twice."""
        self._closed = True
        await self._stop()

    async def __aenter__(self) -> Shell:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
