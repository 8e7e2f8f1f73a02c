"""Exact repeats: lines or paragraphs word for word, and long substrings byte for byte. Loops in `native/copies.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import Packed, library, pointer
from overland.corpus.dedup_index import read_index, write_index
from overland.errors import OverlandError, UsageError

UNITS = "repeated units"
_COPY = np.dtype(
    [
        *(("text", "<i8"), ("start", "<u4"), ("end", "<u4"), ("source", "<i8")),
        *(("source_start", "<u4"), ("source_end", "<u4")),
    ]
)


@dataclass(frozen=True)
class ExactSpan:
    """Bytes [start, end) of a text repeat bytes [source_start, source_end) of the text `source`."""

    start: int
    end: int
    source: str
    source_start: int
    source_end: int


class RepeatedUnits:
    """Lines or paragraphs (runs of lines that are not blank) of at least `min_words` words that came before.

    White space does not count. A short line is no repeat of anything: in code `}` and `return 0;` are everywhere.
    """

    def __init__(self, paragraphs: bool = True, min_words: int = 20) -> None:
        if min_words < 1:
            raise UsageError(f"repeated lines: min_words={min_words} must be at least 1")
        self.paragraphs, self.min_words = paragraphs, min_words
        self.ids: list[str] = []
        self._c = library()
        self._c.units_new.restype = ctypes.c_void_p
        self._c.units_add.restype = self._c.units_export.restype = ctypes.c_int64
        self._state = ctypes.c_void_p(self._c.units_new())

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.units_free(self._state)

    def add(self, texts: Packed, ids: Sequence[str]) -> list[tuple[ExactSpan, ...]]:
        """What each text repeats, in order; the first place of every unit is remembered."""
        if len(ids) != len(texts):
            raise UsageError(f"repeated lines: {len(texts)} texts but {len(ids)} ids")
        numbers = ctypes.c_int64(len(texts)), ctypes.c_int64(len(self.ids))
        where = pointer(texts.data), pointer(texts.offsets)
        count = self._c.units_add(
            self._state, *where, *numbers, ctypes.c_int(self.paragraphs), ctypes.c_int64(self.min_words)
        )
        if count < 0:
            raise OverlandError("repeated lines: out of memory; build by parts")
        first = len(self.ids)
        self.ids += ids
        found = np.empty(count, dtype=_COPY)
        if count:
            self._c.units_found(self._state, pointer(found))
        return _grouped(found, len(texts), self.ids, first)

    def forget_last(self) -> None:
        """Forget what the last `add` remembered: its texts were dropped, and nothing may be a repeat of theirs."""
        self._c.units_forget_last(self._state)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"paragraphs": self.paragraphs}

    def save(self, path: str | Path) -> None:
        """Write what is remembered to one file, atomically and with checksums."""
        count = self._c.units_export(self._state, None, None, None, None)
        arrays = {"key": np.empty(count, "<u8"), **{name: np.empty(count, "<u4") for name in ("text", "start", "end")}}
        self._c.units_export(self._state, *map(pointer, arrays.values()))
        order = np.argsort(arrays["key"], kind="stable")  # a table's order depends on how it grew
        write_index(path, UNITS, self._settings, self.ids, {name: array[order] for name, array in arrays.items()})

    @classmethod
    def load(cls, path: str | Path, paragraphs: bool = True, min_words: int = 20) -> RepeatedUnits:
        """Go on from a saved index. Raises UsageError where it holds the other kind of unit."""
        index = cls(paragraphs, min_words)
        index.ids, arrays = read_index(path, UNITS, index._settings)
        parts = [np.ascontiguousarray(arrays[name]) for name in ("key", "text", "start", "end")]
        if index._c.units_import(index._state, ctypes.c_int64(len(arrays["key"])), *map(pointer, parts)):
            raise OverlandError(f"{path}: does not fit in memory")
        return index


class RepeatedSubstrings:
    """Substrings of at least `size` bytes that stand in an earlier text, or earlier in the same; none overlapping.

    Spans are bytes: their ends may lie inside a character, and `whole_characters` brings them to its bounds. Memory:
    the texts themselves and a quarter more (`n_bytes`), which is why this index is not one to be saved.
    """

    def __init__(self, size: int = 400) -> None:
        if size < 16:
            raise UsageError(f"repeated substrings: size={size} must be at least 16")
        self.size = size
        self.ids: list[str] = []
        self._c = library()
        self._c.substrings_new.restype = ctypes.c_void_p
        self._c.substrings_add.restype = self._c.substrings_bytes.restype = ctypes.c_int64
        self._state = ctypes.c_void_p(self._c.substrings_new())
        if not self._state:
            raise OverlandError("repeated substrings: no memory")

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.substrings_free(self._state)

    def add(self, texts: Packed, ids: Sequence[str], *, report: bool = True) -> list[tuple[ExactSpan, ...]]:
        """What each text repeats; all are remembered. Without `report` they are only compared with later."""
        if len(ids) != len(texts):
            raise UsageError(f"repeated substrings: {len(texts)} texts but {len(ids)} ids")
        numbers = ctypes.c_int64(len(texts)), ctypes.c_int64(self.size), ctypes.c_int(report)
        count = self._c.substrings_add(self._state, pointer(texts.data), pointer(texts.offsets), *numbers)
        if count < 0:
            raise OverlandError("repeated substrings: out of memory; build by parts")
        first = len(self.ids)
        self.ids += ids
        found = np.empty(count, dtype=_COPY)
        if count:
            self._c.substrings_found(self._state, pointer(found))
        return _grouped(found, len(texts), self.ids, first)

    def forget_last(self) -> None:
        """Forget the text that came last: it was dropped, and nothing may be a repeat of it."""
        self._c.substrings_forget_last(self._state)
        self.ids.pop()

    @property
    def n_bytes(self) -> int:
        return int(self._c.substrings_bytes(self._state))


def whole_characters(raw: bytes, start: int, end: int) -> tuple[int, int]:
    """The largest range inside [start, end) that cuts no UTF-8 character."""
    while start < end and raw[start] & 0xC0 == 0x80:
        start += 1
    while end > start and end < len(raw) and raw[end] & 0xC0 == 0x80:
        end -= 1
    return start, end


def _grouped(found: NDArray[Any], n: int, ids: Sequence[str], first: int) -> list[tuple[ExactSpan, ...]]:
    groups: list[list[ExactSpan]] = [[] for _ in range(n)]
    for text, start, end, source, source_start, source_end in found.tolist():
        groups[text - first].append(ExactSpan(start, end, ids[source], source_start, source_end))
    return [tuple(group) for group in groups]
