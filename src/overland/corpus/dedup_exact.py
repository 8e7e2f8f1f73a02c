"""Exact repeats: lines or paragraphs word for word, and long substrings byte for byte. Loops in `native/copies.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import Packed, library, pointer
from overland.errors import OverlandError, UsageError

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
        self._c.units_add.restype = ctypes.c_int64
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


def repeated_substrings(
    texts: Packed, ids: Sequence[str], size: int = 400, fresh: int = 0
) -> list[tuple[ExactSpan, ...]]:
    """Substrings of at least `size` bytes of texts[fresh:] that stand earlier in `texts`, none overlapping.

    The texts before `fresh` are only compared with (an earlier build's, or an evaluation set). Spans are bytes: their
    ends may lie inside a character, and `whole_characters` brings them to its bounds.
    """
    if size < 16 or len(ids) != len(texts):
        raise UsageError(
            f"repeated substrings: size={size} must be at least 16, and {len(texts)} texts need as many ids"
        )
    address = ctypes.c_void_p()
    run = library().overland_substrings
    run.restype = ctypes.c_int64
    numbers = [ctypes.c_int64(value) for value in (len(texts), fresh, size)]
    count = run(pointer(texts.data), pointer(texts.offsets), *numbers, ctypes.byref(address))
    if count < 0:
        raise OverlandError("repeated substrings: out of memory; build by parts")
    found = (
        np.frombuffer(ctypes.string_at(address, count * _COPY.itemsize), dtype=_COPY) if count else np.empty(0, _COPY)
    )
    library().overland_release(address)
    return _grouped(found, len(texts), ids, 0)


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
