"""What a sandbox is: a place where one untrusted command can neither read, write nor exhaust this machine.

A backend says how to start a program inside (`Sandbox.launch`); everything else (pipes, deadlines, limits, the
held-open shell) is shared. Whether a backend deserves trust is not its own claim: `probe.py` attacks it first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overland.agent.sandbox.shell import Shell


@dataclass(frozen=True)
class SandboxLimits:
    """What one sandbox may use. Bytes, seconds and counts; the enforced form is in `Capabilities.limits`."""

    memory_bytes: int = 256 << 20
    processes: int = 64
    cpu_seconds: int = 120
    """Per process (RLIMIT_CPU). Wall time is bounded per command."""
    file_bytes: int = 32 << 20
    """Largest single file."""
    tmp_bytes: int = 32 << 20
    """Size of /tmp and of /dev/shm, each."""
    open_files: int = 256
    command_seconds: float = 10.0
    output_bytes: int = 16 << 10
    """What is kept of a command's output: its head and its tail. The rest is counted."""
    flood_bytes: int = 16 << 20
    """A command that writes more than this is stopped."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend offers and what it really enforces, written into run records."""

    isolated: bool
    """False only for the `process` backend: no boundary at all."""
    network: str
    """"none" or "host"."""
    unprivileged: bool
    """Started as an ordinary user (through setpriv when we are root)."""
    seccomp: bool
    limits: dict[str, str] = field(default_factory=dict)
    """Limit name -> the mechanism that enforces it, or "not enforced"."""


@dataclass(frozen=True)
class ExecResult:
    """What one command did.

    `stdout` is bytes: at most `output_bytes` kept, head and tail around a notice that counts what was left out.
    `limit_hit` is "time", "output", "memory", "processes" or None. `rc` is None where the command was stopped before
    it ended, or took its shell with it.
    """

    rc: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    bytes_total: int
    duration: float
    limit_hit: str | None = None
    note: str = ""
    """What the runtime has to tell the model: a deadline, a dead shell. Empty when all is well."""

    @property
    def text(self) -> str:
        """Output as text; bytes that are not UTF-8 become the replacement character."""
        return (self.stdout + self.stderr).decode("utf-8", errors="replace")

    def describe(self) -> str:
        """The observation a model reads: the output, then a line for a failing code or a note."""
        lines = [self.text.rstrip("\n")] if self.stdout or self.stderr else []
        if self.rc:
            lines.append(f"[exit code {self.rc}]")
        if self.note:
            lines.append(f"[{self.note}]")
        return "\n".join(lines)

    def with_note(self, note: str) -> ExecResult:
        return replace(self, note=f"{self.note}; {note}" if self.note else note)


@dataclass(frozen=True)
class Launch:
    """How to start a program inside.

    A word "{fd[N]}" in `argv` or `options` stands for the descriptor that carries `data[N]`. `options` go through a
    pipe of their own, NUL-separated, whose descriptor is "{options}" in `argv`: what is passed that way does not
    show in the process list inside.
    """

    argv: tuple[str, ...]
    options: tuple[str, ...] = ()
    data: tuple[bytes, ...] = ()
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)


class Sandbox(ABC):
    """One backend. Stateless and cheap: shells and runs are independent of each other."""

    name: str

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this backend enforces on this machine."""

    @abstractmethod
    def launch(self, argv: Sequence[str], workdir: Path | None, limits: SandboxLimits) -> Launch:
        """The command line that runs `argv` inside, with `workdir` writable at `inside(workdir)`."""

    def inside(self, workdir: Path) -> str:
        """Where a host work directory appears to programs in the sandbox."""
        return "/work"

    async def open_shell(self, workdir: Path, limits: SandboxLimits | None = None) -> Shell:
        """Start one /bin/sh that stays open until `Shell.close()`; use it as `async with`."""
        from overland.agent.sandbox.shell import Shell

        shell = Shell(self, workdir, limits or SandboxLimits())
        await shell.start()
        return shell

    async def run_once(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout: float | None = None,
        workdir: Path | None = None,
        limits: SandboxLimits | None = None,
    ) -> ExecResult:
        """Run one program in a fresh sandbox, feed it `stdin`, and return when it ends or at the deadline."""
        from overland.agent.sandbox.once import run_once

        return await run_once(self, argv, stdin, timeout, workdir, limits or SandboxLimits())
