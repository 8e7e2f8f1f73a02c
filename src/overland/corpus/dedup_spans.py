"""Repeated passages inside documents: found by winnowed word 5-grams, decided by an aligned extension.

Every passage names its source and the place in it. What is cut is never the source of another cut, so no passage loses
its last copy. The loops are in `native/spans.c`. Offsets are bytes of the UTF-8 text and lie on word boundaries.
"""

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
from overland.corpus.dedup_words import Words
from overland.errors import OverlandError, UsageError

KIND = "repeated spans"
_SPAN = np.dtype(
    [
        *(("start", "<u4"), ("end", "<u4"), ("source", "<i8")),
        *(("source_start", "<u4"), ("source_end", "<u4"), ("matched", "<u4"), ("words", "<u4")),
    ]
)


@dataclass(frozen=True)
class RepeatedSpan:
    """Bytes [start, end) of a text repeat bytes [source_start, source_end) of the text `source`.

    `identity`: equal words in order, as a share of the span's `words`.
    """

    start: int
    end: int
    source: str
    source_start: int
    source_end: int
    words: int
    identity: float


@dataclass(frozen=True)
class SpanDecision:
    """The repeated spans of one text in order, none overlapping; `dropped` where too little would remain."""

    spans: tuple[RepeatedSpan, ...]
    dropped: bool


class RepeatedSpans:
    """Feed texts in the order of survival; each is told what it repeats of earlier texts and of itself.

    `min_words`: fewest words of a repeated passage; `identity`: fewest equal words of an alignment, as a share of its
    length; `window`: of so many 5-grams in a row one is looked up, so a passage with `window` + 4 equal words in a row
    is always met. Memory: about 12 bytes a word and 8 a winnowed 5-gram (`n_bytes`), 2.3 times the text.
    """

    def __init__(self, min_words: int = 40, identity: float = 0.75, window: int = 6) -> None:
        if min_words < 10 or not 0.5 <= identity <= 1 or not 1 <= window <= 64:
            raise UsageError(
                f"spans: min_words={min_words} must be at least 10, identity={identity} 0.5 to 1 and window={window} "
                "1 to 64"
            )
        self.min_words, self.identity, self.window = min_words, identity, window
        self.ids: list[str] = []
        self._c = library()
        self._c.spans_new.restype = ctypes.c_void_p
        self._c.spans_found.restype = self._c.spans_bytes.restype = ctypes.c_int64
        self._state = ctypes.c_void_p(self._c.spans_new(window))
        if not self._state:
            raise OverlandError("repeated spans: no memory")

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.spans_free(self._state)

    def add(
        self,
        texts: Packed,
        ids: Sequence[str],
        *,
        min_words: int | Sequence[int] | None = None,
        min_left: int | Sequence[int] = 0,
    ) -> list[SpanDecision]:
        """Decide over texts and remember what stays of them.

        `min_words` overrides the index's, for all texts or one by one; `min_left`: a text of which fewer words would
        remain is dropped whole and is no source of later ones.
        """
        if len(ids) != len(texts):
            raise UsageError(f"repeated spans: {len(texts)} texts but {len(ids)} ids")
        words = Words()
        least, left = self._each(texts, min_words), np.broadcast_to(min_left, len(texts)).tolist()
        return [
            self.take(words.of(texts.raw(i)), ids[i], min_words=least[i], min_left=left[i]) for i in range(len(texts))
        ]

    def take(self, words: Words, key: str, *, min_words: int | None = None, min_left: int = 0) -> SpanDecision:
        """The same for the text of these words."""
        spans, number = self._run(words, self.min_words if min_words is None else min_words, min_left, insert=True)
        found = self._named(spans, key)
        if number >= 0:
            self.ids.append(key)
        return SpanDecision(found, number < 0)

    def forget_last(self) -> None:
        """Make the text that was remembered last the source of nothing: it was dropped for another reason."""
        self._c.spans_forget_last(self._state)

    def find(self, texts: Packed, *, min_words: int | Sequence[int] | None = None) -> list[tuple[RepeatedSpan, ...]]:
        """What texts repeat of the remembered ones, remembering nothing and leaving their own repeats aside.

        A remembered text shorter than `min_words` is reported where it occurs whole.
        """
        words, out = Words(), []
        for i, least in enumerate(self._each(texts, min_words)):
            spans, _ = self._run(words.of(texts.raw(i)), least, 0, insert=False)
            out.append(self._named(spans[spans["source"] >= 0], ""))
        return out

    def _each(self, texts: Packed, min_words: int | Sequence[int] | None) -> list[int]:
        return np.broadcast_to(self.min_words if min_words is None else min_words, len(texts)).tolist()

    def _run(self, words: Words, min_words: int, min_left: int, insert: bool) -> tuple[NDArray[Any], int]:
        number = ctypes.c_int64()
        numbers = ctypes.c_int(min_words), ctypes.c_int(min_left), ctypes.c_double(self.identity), ctypes.c_int(insert)
        if self._c.spans_take(self._state, words.state, *numbers, ctypes.byref(number)):
            raise OverlandError("repeated spans: out of memory, or over 4 billion words; build by parts")
        spans = np.empty(self._c.spans_found(self._state, None), dtype=_SPAN)
        if len(spans):
            self._c.spans_found(self._state, pointer(spans))
        return spans, number.value

    def _named(self, spans: NDArray[Any], key: str) -> tuple[RepeatedSpan, ...]:
        found = []
        for start, end, source, source_start, source_end, matched, words in spans.tolist():
            name = key if source < 0 else self.ids[source]
            found.append(RepeatedSpan(start, end, name, source_start, source_end, words, matched / words))
        return tuple(found)

    def spill(self, folder: Path) -> None:
        """Move what is remembered into nameless files in `folder`; called again, take their pages out of memory.

        Nothing else changes. Raises OverlandError where the disk is full.
        """
        if self._c.spans_spill(self._state, str(folder).encode("utf-8", "surrogateescape")):
            raise OverlandError(f"{folder}: no room on the disk for the duplicate index; free some and go on")

    @property
    def n_bytes(self) -> int:
        return int(self._c.spans_bytes(self._state))

    @property
    def _settings(self) -> dict[str, Any]:
        return {"window": self.window, "ngram": 5}

    def save(self, path: str | Path) -> None:
        """Write what is remembered to one file, atomically and with checksums."""
        sizes = np.zeros(3, dtype=np.int64)
        self._c.spans_sizes(self._state, pointer(sizes))
        texts, words, slots = sizes.tolist()
        arrays = {
            "first": np.empty(texts + 1, dtype="<u8"),
            "word": np.empty(words, dtype="<u4"),
            "start": np.empty(words, dtype="<u4"),
            "end": np.empty(words, dtype="<u4"),
            "slots": np.empty(slots, dtype="<u8"),
        }
        self._c.spans_export(self._state, *map(pointer, arrays.values()))
        write_index(path, KIND, self._settings, self.ids, arrays)

    @classmethod
    def load(cls, path: str | Path, min_words: int = 40, identity: float = 0.75, window: int = 6) -> RepeatedSpans:
        """Go on from a saved index; only `window` must be what it was made with. Raises UsageError where it is not."""
        index = cls(min_words, identity, window)
        index.ids, arrays = read_index(path, KIND, index._settings)
        sizes = [ctypes.c_int64(n) for n in (len(index.ids), len(arrays["word"]), len(arrays["slots"]))]
        parts = [np.ascontiguousarray(arrays[name]) for name in ("first", "word", "start", "end", "slots")]
        if index._c.spans_import(index._state, *sizes, *map(pointer, parts)):
            raise OverlandError(f"{path}: does not fit in memory")
        return index
