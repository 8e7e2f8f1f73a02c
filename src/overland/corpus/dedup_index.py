"""A duplicate index as one file: a header in JSON, then raw arrays, each with its length and sha256.

Written to a temporary name and renamed, so that an index is the old one or the new one; read with every check, so that
a damaged one is named instead of quietly missing duplicates.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland import runs
from overland.errors import BrokenFileError, UsageError

MAGIC = b"overland index 1\n"
Arrays = dict[str, NDArray[Any]]


def write_index(path: str | Path, kind: str, settings: dict[str, Any], ids: list[str], arrays: Arrays) -> None:
    """Write an index of `kind` with what makes two of them comparable (`settings`) and the ids its numbers mean."""
    path = Path(path)
    names = np.frombuffer("\n".join(ids).encode("utf-8", "surrogateescape"), dtype=np.uint8)
    if any("\n" in name for name in ids):
        raise UsageError(f"{path}: an id with a line break cannot be stored")
    parts = {"ids": names, **arrays}
    header = {
        "kind": kind,
        "settings": settings,
        "texts": len(ids),
        "arrays": [
            {
                "name": name,
                "dtype": a.dtype.str,
                "shape": list(a.shape),
                "sha256": hashlib.sha256(_bytes(a)).hexdigest(),
            }
            for name, a in parts.items()
        ],
    }
    head = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with runs.explain_disk_errors(path), open(scratch, "wb") as file:
            file.write(MAGIC + len(head).to_bytes(8, "little") + hashlib.sha256(head).digest() + head)
            for array in parts.values():
                file.write(_bytes(array))
            file.flush()
            os.fsync(file.fileno())
            os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def read_index(path: str | Path, kind: str, settings: dict[str, Any]) -> tuple[list[str], Arrays]:
    """(ids, arrays) of an index. Raises UsageError where it was made with other settings, BrokenFileError naming it."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise BrokenFileError(f"{path}: is not a duplicate index; delete it to begin a new one")
            size, digest = int.from_bytes(file.read(8), "little"), file.read(32)
            head = file.read(min(size, path.stat().st_size))
            if hashlib.sha256(head).digest() != digest:
                raise BrokenFileError(f"{path}: its header is damaged; restore it or delete it to begin a new one")
            header = json.loads(head)
            if header["kind"] != kind or header["settings"] != settings:
                raise UsageError(
                    f"{path}: holds a '{header['kind']}' index made with {header['settings']}, "
                    f"this run wants '{kind}' with {settings}; use another file"
                )
            arrays: Arrays = {}
            for entry in header["arrays"]:
                dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
                array = np.fromfile(file, dtype=dtype, count=int(np.prod(shape)))
                if array.size != np.prod(shape) or hashlib.sha256(_bytes(array)).hexdigest() != entry["sha256"]:
                    raise BrokenFileError(f"{path}: array '{entry['name']}' is damaged; restore the file or delete it")
                arrays[entry["name"]] = array.reshape(shape)
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read ({error.strerror})") from error
    raw = arrays.pop("ids").tobytes().decode("utf-8", "surrogateescape")
    ids = raw.split("\n") if header["texts"] else []
    if len(ids) != header["texts"]:
        raise BrokenFileError(f"{path}: names {len(ids)} texts, its header says {header['texts']}")
    return ids, arrays


def _bytes(array: NDArray[Any]) -> memoryview:
    return memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")
