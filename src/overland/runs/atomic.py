"""Writes that happen wholly or not at all, and reads that name the file that is broken.

A process may be killed between any two instructions, so a file is written beside its final name, flushed to the disk
and renamed: a reader sees the old content or the new content, never half of either.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overland.errors import BrokenFileError, OverlandError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def explain_disk_errors(path: str | Path) -> Iterator[None]:
    """Turn a full disk or a refused write into an OverlandError that names `path` and what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            free = _free_bytes(Path(path))
            raise OverlandError(
                f"{path}: the disk is full ({free / 2**20:.0f} MiB free). Free some space (old run folders and their "
                "checkpoints/ and episodes/ are the largest) and run it again, with --resume where it has that."
            ) from error
        if error.errno in _REFUSED:
            raise OverlandError(f"{path}: cannot be written ({error.strerror}). Choose another folder.") from error
        raise


def _free_bytes(path: Path) -> int:
    for folder in (path, *path.parents):
        if folder.is_dir():
            return shutil.disk_usage(folder).free
    return 0


def _flush_folder(folder: Path) -> None:
    """Make a rename durable: on POSIX a new name is safe once its folder was flushed too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path` through a temporary file, fsync and rename. Makes missing folders.

    Raises OverlandError when the disk is full or the folder refuses the write; the old file then still stands.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


def replace_folder(temporary: str | Path, final: str | Path) -> None:
    """Give a finished folder its name. Flushes every file first; an older folder of that name is replaced."""
    temporary, final = Path(temporary), Path(final)
    with explain_disk_errors(final):
        for file in temporary.rglob("*"):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _flush_folder(temporary)
        if final.exists():
            old = final.with_name(f".{final.name}.{os.getpid()}.old")
            os.replace(final, old)
            os.replace(temporary, final)
            shutil.rmtree(old)
        else:
            os.replace(temporary, final)
        _flush_folder(final.parent)


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes as lower-case hex. Raises BrokenFileError when the file is missing or unreadable."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read ({error.strerror}).") from error


def write_json(path: str | Path, obj: Any) -> None:
    """Write `obj` as indented JSON, atomically, in a form that is the same for equal content."""
    atomic_write(path, json.dumps(obj, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file. Raises BrokenFileError naming the file when it is missing, truncated or not JSON."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BrokenFileError(
            f"{path}: is not valid JSON ({error}). Delete this file to redo its stage, or run again without --resume."
        ) from error


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process had begun to write below `folder`. Nobody else may be writing there."""
    for path in list(folder.rglob(".*.tmp")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
