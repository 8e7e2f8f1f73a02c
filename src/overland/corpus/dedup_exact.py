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
SUBSTRINGS = "substrings"
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
    the texts themselves and a quarter more (`n_bytes`). What is saved is no text but `EarlierSubstrings`.
    """

    def __init__(self, size: int = 400) -> None:
        if size < 16:
            raise UsageError(f"repeated substrings: size={size} must be at least 16")
        self.size = size
        self.ids: list[str] = []
        self.earlier: EarlierSubstrings | None = None
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
        groups = _grouped(found, len(texts), self.ids, first)
        if self.earlier is None or not report:
            return groups
        earlier = (self.earlier.find(texts.raw(number)) for number in range(len(texts)))
        return [_without_overlaps(*both) for both in zip(groups, earlier, strict=True)]

    def save(self, path: str | Path) -> None:
        """Write the windows of what is remembered, and of what it was itself compared with, to one file."""
        data, offset = ctypes.c_void_p(), ctypes.c_void_p()
        self._c.substrings_texts.restype = ctypes.c_int64
        count = self._c.substrings_texts(self._state, ctypes.byref(data), ctypes.byref(offset))
        mine = EarlierSubstrings.of(self.size, self.ids, data, offset, count)
        (self.earlier.and_later(mine) if self.earlier else mine).save(path)

    def forget_last(self) -> None:
        """Forget the text that came last: it was dropped, and nothing may be a repeat of it."""
        self._c.substrings_forget_last(self._state)
        self.ids.pop()

    @property
    def n_bytes(self) -> int:
        return int(self._c.substrings_bytes(self._state))


class EarlierSubstrings:
    """Long substrings of texts that are gone, known by hashes of windows of `size` bytes, one every `stride` bytes.

    What is found repeats at least `size` bytes; what repeats `size + stride - 1` bytes is always found, with its ends
    known to within `stride - 1` bytes. The source is the text in which it begins. 20 bytes a window: half as much as
    there was text at size 400.
    """

    def __init__(self, size: int, ids: list[str], arrays: dict[str, NDArray[Any]]) -> None:
        self.size, self.stride, self.ids = size, _stride(size), ids
        _, first = np.unique(arrays["key"], return_index=True)  # sorted by key; the first place of each
        self.arrays = {name: np.ascontiguousarray(array[first]) for name, array in arrays.items()}
        self._c = library()
        self._c.windows_find.restype = ctypes.c_int64
        n = len(self.arrays["key"])
        self._shift = 64 - max(10, n.bit_length() + 4)
        self._bits = np.zeros(1 << (61 - self._shift), dtype=np.uint8)
        self._c.windows_bits(pointer(self.arrays["key"]), ctypes.c_int64(n), self._shift, pointer(self._bits))

    @classmethod
    def of(cls, size: int, ids: list[str], data: Any, offset: Any, count: int) -> EarlierSubstrings:
        """The windows of `count` texts, given as pointers to their bytes and bounds."""
        c = library()
        c.windows_of.restype = ctypes.c_int64
        given = data, offset, ctypes.c_int64(count), ctypes.c_int64(size), ctypes.c_int64(_stride(size))
        n = c.windows_of(*given, None, None, None, None)
        arrays = {"key": np.empty(n, "<u8"), **{name: np.empty(n, "<u4") for name in ("check", "text", "place")}}
        c.windows_of(*given, *map(pointer, arrays.values()))
        return cls(size, list(ids), arrays)

    def and_later(self, other: EarlierSubstrings) -> EarlierSubstrings:
        """Both; of equal windows the earlier one's place stays."""
        arrays = {name: np.concatenate([mine, other.arrays[name]]) for name, mine in self.arrays.items()}
        arrays["text"][len(self.arrays["text"]) :] += len(self.ids)
        return EarlierSubstrings(self.size, self.ids + other.ids, arrays)

    def find(self, raw: bytes) -> tuple[ExactSpan, ...]:
        """What of a text stands in earlier ones."""
        room = len(raw) // self.size
        found = np.empty((max(1, room), 3), dtype=np.int64)
        numbers = ctypes.c_int64(len(raw)), ctypes.c_int64(self.size), ctypes.c_int64(self.stride)
        known = pointer(self.arrays["key"]), pointer(self.arrays["check"]), ctypes.c_int64(len(self.arrays["key"]))
        count = self._c.windows_find(
            *known, pointer(self._bits), self._shift, raw, *numbers, pointer(found), ctypes.c_int64(room)
        )
        spans = []
        for start, end, entry in found[:count].tolist():
            place = int(self.arrays["place"][entry])
            source = self.ids[int(self.arrays["text"][entry])]
            spans.append(ExactSpan(start, end, source, place, place + end - start))
        return tuple(spans)

    def save(self, path: str | Path) -> None:
        """Write them to one file, atomically and with checksums."""
        write_index(path, SUBSTRINGS, {"size": self.size}, self.ids, self.arrays)

    @classmethod
    def load(cls, path: str | Path, size: int) -> EarlierSubstrings:
        """Raises UsageError where the file was made for another size."""
        return cls(size, *read_index(path, SUBSTRINGS, {"size": size}))


def _stride(size: int) -> int:
    return max(1, size // 10)


def _without_overlaps(mine: tuple[ExactSpan, ...], earlier: tuple[ExactSpan, ...]) -> tuple[ExactSpan, ...]:
    """All spans in order; where two overlap, the earlier build's goes first and the other has what it leaves."""
    out = list(earlier)
    for span in mine:
        start, end = span.start, span.end
        for other in earlier:
            if other.start <= start < other.end:
                start = min(end, other.end)
            elif start < other.start < end:
                end = other.start
        if start < end:
            shift = start - span.start
            out.append(
                ExactSpan(start, end, span.source, span.source_start + shift, span.source_start + end - span.start)
            )
    return tuple(sorted(out, key=lambda span: span.start))


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
