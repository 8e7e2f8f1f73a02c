"""Memory and process limits through the kernel's control groups, v1 or v2, where we may write them.

A group is a directory per sandbox under our own group. The sandbox's first program joins it before it gives up its
privileges, so nothing is ever outside. Where no group can be made, rlimits stand in (see `rlimits.py`), and the
capability record says which it was.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PREFIX = "overland-"
_numbers = itertools.count()


@dataclass(frozen=True)
class Hierarchy:
    """Where groups can be made: `memory` and `pids` are the parents (the same directory under v2)."""

    version: int
    memory: Path | None
    pids: Path | None

    def describe(self, what: str) -> str | None:
        parent = self.memory if what == "memory" else self.pids
        return f"cgroup v{self.version}" if parent else None


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Controller ("" for v2) -> (mount point, root of the mount), from /proc/self/mountinfo."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not kind or len(fields) < 5:
            continue
        if kind[0] == "cgroup2":
            found.setdefault("", (fields[4], fields[3]))
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                found.setdefault(option, (fields[4], fields[3]))
    return found


def _own_dir(mount: tuple[str, str], own: str) -> Path:
    point, root = mount
    relative = own[len(root) :] if root != "/" and own.startswith(root) else own
    path = Path(point) / relative.lstrip("/")
    return path if path.is_dir() else Path(point)


def _can_make(parent: Path, needs: str) -> bool:
    """A trial is the only honest answer: permissions, read-only mounts and delegation all show in it."""
    trial = parent / f"{PREFIX}{os.getpid()}-trial-{next(_numbers)}"
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        return os.access(trial / needs, os.W_OK)
    finally:
        with contextlib.suppress(OSError):
            trial.rmdir()


@functools.cache
def hierarchy() -> Hierarchy:
    """Finds writable groups once per process."""
    try:
        mounts = _mounts(Path("/proc/self/mountinfo").read_text())
        own = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            for name in names.split(","):
                own[name] = path
    except OSError:
        return Hierarchy(0, None, None)
    if "" in mounts:
        directory = _own_dir(mounts[""], own.get("", "/"))
        # A group with processes cannot enable controllers for children, so a sibling of ours is often the only place.
        for parent in (directory, directory.parent, Path(mounts[""][0])):
            with contextlib.suppress(OSError):
                enabled = (parent / "cgroup.subtree_control").read_text().split()
                if {"memory", "pids"} <= set(enabled) and _can_make(parent, "memory.max"):
                    _reap(parent)
                    return Hierarchy(2, parent, parent)
    parents: dict[str, Path | None] = {"memory": None, "pids": None}
    for name, file in (("memory", "memory.limit_in_bytes"), ("pids", "pids.max")):
        if name in mounts:
            parent = _own_dir(mounts[name], own.get(name, "/"))
            if _can_make(parent, file):
                _reap(parent)
                parents[name] = parent
    return Hierarchy(1, parents["memory"], parents["pids"])


def _reap(parent: Path) -> None:
    """Removes empty groups of processes that no longer exist (a run that was killed)."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{PREFIX}*"):
            pid = path.name[len(PREFIX) :].split("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    path.rmdir()


class Group:
    """The limits of one sandbox. `directories` is what its first program writes itself into."""

    def __init__(self, memory_bytes: int, processes: int) -> None:
        self.where = hierarchy()
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self.memory = self.where.memory / name if self.where.memory else None
        self.pids = self.where.pids / name if self.where.pids else None
        self.directories: list[Path] = []
        for path in dict.fromkeys(p for p in (self.memory, self.pids) if p):
            path.mkdir()
            self.directories.append(path)
        if self.memory and self.where.version == 2:
            self._write(self.memory / "memory.max", memory_bytes)
            self._write(self.memory / "memory.swap.max", 0)
            self._write(self.memory / "memory.oom.group", 0)
        elif self.memory:
            self._write(self.memory / "memory.limit_in_bytes", memory_bytes)
            self._write(self.memory / "memory.memsw.limit_in_bytes", memory_bytes)
        if self.pids:
            # The runtime's own processes (the launcher, the namespace's init, the shell) are counted too.
            self._write(self.pids / "pids.max", processes + 3)

    @staticmethod
    def _write(path: Path, value: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # optional files: swap accounting, oom.group
            path.write_text(str(value))

    def kills(self) -> int:
        """How often the kernel killed for memory in this group."""
        if not self.memory:
            return 0
        name = "memory.events" if self.where.version == 2 else "memory.oom_control"
        return self._field(self.memory / name, "oom_kill")

    def refusals(self) -> int:
        """How often a fork was refused."""
        return self._field(self.pids / "pids.events", "max") if self.pids else 0

    @staticmethod
    def _field(path: Path, name: str) -> int:
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith(name + " "):
                    return int(line.split()[1])
        return 0

    def processes(self) -> list[int]:
        found: set[int] = set()
        for path in self.directories:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
        return sorted(found - {0})

    def kill(self) -> None:
        """SIGKILL to whatever is left inside; a second line behind the pid namespace."""
        for pid in self.processes():
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Removes the directories. False while processes linger (they do for some milliseconds)."""
        left = []
        for path in self.directories:
            try:
                path.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                left.append(path)
        self.directories = left
        return not left
