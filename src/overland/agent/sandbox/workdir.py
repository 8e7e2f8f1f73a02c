"""The folder that an episode works in, on the host's side: made, filled, read back and removed without trusting it.

What a sandbox leaves behind may be links to /etc/shadow, pipes that never answer, or a million files. Nothing here
follows a link, opens anything but a regular file, or reads without a bound.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType

from overland.agent.sandbox.cgroup import hierarchy
from overland.agent.sandbox.identity import reachable, tool, uid_gid
from overland.errors import OverlandError, UsageError

PREFIX = "overland-work-"
ROOM = 512 << 20
_NO_FOLLOW_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Tree:
    """A snapshot. Paths are relative, with slashes."""

    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    """Path -> why it was not read: "too large", "not a file", "unreadable", "too many files"."""


def read_tree(workdir: Path, max_files: int = 10_000, max_bytes: int = 64 << 20) -> Tree:
    """Reads every regular file below `workdir` without following a link, at most `max_files` and `max_bytes` in all."""
    tree = Tree({}, {}, (), {})
    folders: list[str] = []
    budget = [max_files, max_bytes]
    root = os.open(workdir, _NO_FOLLOW_DIR)
    try:
        _read_folder(root, "", tree, folders, budget)
    finally:
        os.close(root)
    return Tree(tree.files, tree.links, tuple(folders), tree.skipped)


def _read_folder(fd: int, prefix: str, tree: Tree, folders: list[str], budget: list[int], depth: int = 0) -> None:
    with os.scandir(fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = prefix + os.fsencode(name).decode("utf-8", errors="backslashreplace")
        if budget[0] <= 0:
            tree.skipped[path] = "too many files"
            return
        budget[0] -= 1
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                tree.links[path] = os.fsencode(os.readlink(name, dir_fd=fd)).decode("utf-8", errors="backslashreplace")
            elif stat.S_ISDIR(info.st_mode):
                folders.append(path)
                if depth >= 64:
                    tree.skipped[path] = "too deep"
                    continue
                below = os.open(name, _NO_FOLLOW_DIR, dir_fd=fd)
                try:
                    _read_folder(below, path + "/", tree, folders, budget, depth + 1)
                finally:
                    os.close(below)
            elif stat.S_ISREG(info.st_mode):
                _read_file(name, fd, path, tree, budget)
            else:
                tree.skipped[path] = "not a file"
        except OSError:
            tree.skipped[path] = "unreadable"


def _read_file(name: str, fd: int, path: str, tree: Tree, budget: list[int]) -> None:
    # Between the look and the opening it may have become a link or a pipe: refuse one, do not wait on the other.
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    with open(handle, "rb", buffering=0) as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            tree.skipped[path] = "not a file"
        elif info.st_size > budget[1]:
            tree.skipped[path] = "too large"
        else:
            content = bytearray()
            while len(content) <= budget[1] and (block := file.read(1 << 20)):
                content += block
            if len(content) > budget[1]:
                tree.skipped[path] = "too large"
                return
            budget[1] -= len(content)
            tree.files[path] = bytes(content)


def write_files(workdir: Path, files: Mapping[str, bytes | str], owner: tuple[int, int] | None = None) -> None:
    """Writes files below `workdir`, making folders, never through a link. Paths that leave it are refused."""
    owner = owner or uid_gid()
    root = os.open(workdir, _NO_FOLLOW_DIR)
    try:
        for path, content in files.items():
            parts = PurePosixPath(path).parts
            if not parts or path.startswith("/") or ".." in parts:
                raise UsageError(f"{path!r} is not a path inside the work directory")
            _write_file(root, parts, content.encode() if isinstance(content, str) else content, owner)
    finally:
        os.close(root)


def _write_file(root: int, parts: tuple[str, ...], content: bytes, owner: tuple[int, int]) -> None:
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
                os.chown(part, *owner, dir_fd=here, follow_symlinks=False)
            below = os.open(part, _NO_FOLLOW_DIR, dir_fd=here)
            os.close(here)
            here = below
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(parts[-1], flags, 0o644, dir_fd=here), "wb") as file:
            file.write(content)
            os.fchown(file.fileno(), *owner)
    finally:
        os.close(here)


def _base() -> Path:
    """Where work directories are made.

    Memory (/dev/shm) where a memory group is enforced: what a sandbox writes there is charged to its memory limit, so
    it cannot fill a disk, and it is quicker. Otherwise the first temporary folder its user can reach.
    """
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    if hierarchy().memory:
        candidates.insert(0, Path("/dev/shm"))
    for path in candidates:
        try:
            room = os.statvfs(path)
        except OSError:
            continue
        if room.f_bavail * room.f_frsize >= ROOM and os.access(path, os.W_OK) and reachable(path):
            return path
    raise OverlandError(f"no temporary folder has {ROOM >> 20} MiB free and is open to the sandbox: set TMPDIR")


class Workdir:
    """A fresh folder that the sandbox's user owns; removed by `close()` (or at the end of `with`)."""

    def __init__(self, files: Mapping[str, bytes | str] | None = None, base: Path | None = None) -> None:
        base = base or _base()
        reap(base)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
        try:
            os.chown(self.path, *uid_gid())
            if files:
                write_files(self.path, files)
        except BaseException:
            self.close()
            raise

    def read(self, max_files: int = 10_000, max_bytes: int = 64 << 20) -> Tree:
        return read_tree(self.path, max_files, max_bytes)

    def close(self) -> None:
        remove_tree(self.path)

    def __enter__(self) -> Workdir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_tree(path: Path) -> None:
    """Removes a folder that something hostile owned: no link followed, closed folders opened first."""

    above = os.path.dirname(path)

    def open_up(function: object, name: str, error: object) -> None:
        parent = os.path.dirname(name)
        with contextlib.suppress(OSError):
            for folder in (parent, name):
                # Never the folder that `path` itself lies in: that one is everybody's.
                if folder != above and not os.path.islink(folder) and os.path.isdir(folder):
                    os.chmod(folder, 0o700)
        with contextlib.suppress(OSError):
            if os.path.isdir(name) and not os.path.islink(name):
                shutil.rmtree(name, ignore_errors=True)
            else:
                os.unlink(name)

    try:
        shutil.rmtree(path, onerror=open_up)
    except RecursionError:  # folders in folders, thousands deep: rm does not recurse
        subprocess.run([tool("rm") or "rm", "-rf", "--", str(path)], check=False, stderr=subprocess.DEVNULL)


_reaped: set[Path] = set()


def reap(base: Path) -> None:
    """Once per process: removes work directories whose process was killed."""
    if base in _reaped:
        return
    _reaped.add(base)
    for path in base.glob(f"{PREFIX}*"):
        pid = path.name[len(PREFIX) :].split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            remove_tree(path)
