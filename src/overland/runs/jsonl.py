"""JSON lines under zstandard: one object a line, checksummed, so that a truncated or damaged file is noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from overland.errors import BrokenFileError
from overland.runs.atomic import explain_disk_errors

_CHUNK = 1 << 16


def write_jsonl_zst(path: str | Path, rows: Iterable[dict[str, Any]], level: int = 6) -> int:
    """Write one object a line, atomically: the file has its name only once it is whole. Returns the number of rows."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    count = 0
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                with compressor.stream_writer(file, closefd=False) as stream:
                    for row in rows:
                        stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                        count += 1
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return count


def read_jsonl_zst(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file in order. Raises BrokenFileError when it is missing, truncated or damaged."""
    pending = b""
    number = 0
    for piece in _decompress(Path(path)):
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            number += 1
            yield _parse(path, number, line)
    if pending:
        yield _parse(path, number + 1, pending)


def _parse(path: str | Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BrokenFileError(f"{path}: line {number} is not JSON ({error}).") from error


def _decompress(path: Path) -> Iterator[bytes]:
    """The plain bytes of every frame. A stream reader would take a cut file for its end; `eof` tells them apart."""
    try:
        with open(path, "rb") as file:
            frame = zstandard.ZstdDecompressor().decompressobj()
            fresh = True
            while chunk := file.read(_CHUNK):
                while chunk:
                    yield frame.decompress(chunk)
                    fresh, chunk = False, b""
                    if frame.eof:
                        chunk = frame.unused_data
                        frame, fresh = zstandard.ZstdDecompressor().decompressobj(), True
            if not fresh:
                raise BrokenFileError(f"{path}: was cut, it ends in the middle. Delete it, or run without --resume.")
    except zstandard.ZstdError as error:
        raise BrokenFileError(f"{path}: is damaged ({error}). Delete it, or run without --resume.") from error
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read ({error.strerror}).") from error
