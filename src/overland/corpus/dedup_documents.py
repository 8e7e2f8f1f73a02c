"""Near-duplicate documents: MinHash in bands proposes, the exact Jaccard similarity of word 5-grams decides.

The first in the order of survival stays; a text is only ever dropped in favour of one that stays, so none loses its
last copy. 32 bands of 5 rows miss a pair at similarity .8 three times in a million; the exact check leaves no false
one. The loops are in `native/near.c`; a text that has no words is never a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overland.corpus.compiled import Packed, library, pointer
from overland.corpus.dedup_index import read_index, write_index
from overland.corpus.dedup_words import Words
from overland.errors import OverlandError, UsageError

BANDS, ROWS, NGRAM = 32, 5, 5
KIND = "near duplicates"


@dataclass(frozen=True)
class Copy:
    """What a text copies: the id of a kept text, and the Jaccard similarity of their 5-gram sets."""

    id: str
    similarity: float


class NearDocuments:
    """Feed texts in the order of survival; each is told which kept text it copies, if any.

    Memory: about 4 bytes a word and 600 bytes a document that was kept (`n_bytes`).
    """

    def __init__(self, threshold: float = 0.75) -> None:
        if not 0.5 <= threshold <= 1:
            raise UsageError(f"near_duplicate={threshold} must be 0.5 to 1; the bands are made for that range")
        self.threshold = threshold
        self.ids: list[str] = []
        self._c = library()
        self._c.near_new.restype = ctypes.c_void_p
        self._c.near_new.argtypes = [ctypes.c_double]
        self._c.near_bytes.restype = ctypes.c_int64
        self._state = ctypes.c_void_p(self._c.near_new(threshold))
        if not self._state:
            raise OverlandError("near duplicates: no memory")

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.near_free(self._state)

    def add(self, texts: Packed, ids: Sequence[str]) -> list[Copy | None]:
        """For each text the kept one that it copies; None keeps it and remembers it under its id."""
        if len(ids) != len(texts):
            raise UsageError(f"near duplicates: {len(texts)} texts but {len(ids)} ids")
        words = Words()
        return [self.take(words.of(texts.raw(i)), ids[i]) for i in range(len(texts))]

    def take(self, words: Words, key: str) -> Copy | None:
        """The kept text that the one of these words copies; None keeps it and remembers it under its id."""
        copy_of, similarity = ctypes.c_int64(), ctypes.c_float()
        if self._c.near_take(self._state, words.state, ctypes.byref(copy_of), ctypes.byref(similarity)):
            raise OverlandError("near duplicates: out of memory; raise the memory limit or build by parts")
        if copy_of.value >= 0:
            return Copy(self.ids[copy_of.value], similarity.value)
        if copy_of.value == -1:
            self.ids.append(key)
        return None

    def __len__(self) -> int:
        return len(self.ids)

    def forget_last(self) -> None:
        """Forget the text that was kept last: it was dropped for another reason, and nothing may be a copy of it."""
        self._c.near_forget_last(self._state)
        self.ids.pop()

    def spill(self, folder: Path) -> None:
        """Move what is remembered into nameless files in `folder`; called again, take their pages out of memory.

        Nothing else changes. Raises OverlandError where the disk is full.
        """
        if self._c.near_spill(self._state, str(folder).encode("utf-8", "surrogateescape")):
            raise OverlandError(f"{folder}: no room on the disk for the duplicate index; free some and go on")

    @property
    def n_bytes(self) -> int:
        return int(self._c.near_bytes(self._state))

    @property
    def _settings(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "bands": BANDS, "rows": ROWS, "ngram": NGRAM}

    def save(self, path: str | Path) -> None:
        """Write what is remembered to one file, atomically and with checksums."""
        sizes = (ctypes.c_int64 * 2)()
        self._c.near_sizes(self._state, ctypes.byref(sizes, 0), ctypes.byref(sizes, 8))
        docs, shingles = sizes
        arrays = {
            "length": np.empty(docs, dtype="<u4"),
            "sketch": np.empty((docs, BANDS * ROWS), dtype="u1"),
            "keys": np.empty((docs, BANDS), dtype="<u8"),
            "shingles": np.empty(shingles, dtype="<u4"),
        }
        self._c.near_export(self._state, *map(pointer, arrays.values()))
        write_index(path, KIND, self._settings, self.ids, arrays)

    @classmethod
    def load(cls, path: str | Path, threshold: float = 0.75) -> NearDocuments:
        """Go on from a saved index. Raises UsageError where it was made with another threshold."""
        index = cls(threshold)
        index.ids, arrays = read_index(path, KIND, index._settings)
        order = ("length", "sketch", "keys", "shingles")
        if index._c.near_import(
            index._state,
            ctypes.c_int64(len(index.ids)),
            *(pointer(np.ascontiguousarray(arrays[name])) for name in order),
        ):
            raise OverlandError(f"{path}: does not fit in memory")
        return index


def shingles(text: str | bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Sorted distinct hashes of a text's word 5-grams, as the index compares them."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    out = np.empty(len(raw) // 2 + 2, dtype=np.uint32)
    function = library().overland_shingles
    function.restype = ctypes.c_int64
    count = function(ctypes.c_char_p(raw), ctypes.c_int64(len(raw)), pointer(out))
    return out[:count]
