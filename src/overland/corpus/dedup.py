"""Duplicates: exact documents, near documents. The first in a fixed total order survives.

Near duplicates: MinHash over word 5-grams in 32 bands of 5 rows finds candidates, and the exact Jaccard similarity of
the 5-gram sets decides. A document is only ever dropped in favour of one that stays, so no text loses its last copy.
Sources: Broder 1997; measured settings in the project's data study (recall .999 at J >= .8, precision 1).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BANDS, ROWS, NGRAM = 32, 5, 5
_WORD = re.compile(r"\w+|[^\w\s]")
_MIX = np.uint64(0x9E3779B97F4A7C15)


def normalised_hash(text: str) -> str:
    """SHA-256 of the text with white space collapsed: what counts as the same document."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


class Shingler:
    """Texts to sets of hashed word 5-grams. Words are hashed once, by content, so runs agree across processes."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def shingles(self, text: str) -> NDArray[np.uint64]:
        """Sorted unique 64-bit hashes of the word 5-grams; a shorter text has one, of all its words."""
        known = self._words
        ids = np.fromiter((known.get(w) or self._hash(w) for w in _WORD.findall(text.lower())), dtype=np.uint64)
        if len(ids) == 0:
            return ids
        n = min(NGRAM, len(ids))
        count = len(ids) - n + 1
        mixed = np.zeros(count, dtype=np.uint64)
        for i in range(n):
            mixed = (mixed ^ ids[i : i + count]) * _MIX
            mixed ^= mixed >> np.uint64(29)
        return np.unique(mixed)

    def _hash(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        value = self._words[word] = int.from_bytes(digest, "little") | 1
        return value


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """Exact Jaccard similarity of two sorted unique arrays."""
    if not len(a) or not len(b):
        return 0.0
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


@dataclass
class _Kept:
    key: str
    shingles: NDArray[np.uint64]


class NearDuplicates:
    """Feed texts in the order of survival; each is told which kept text it copies, if any."""

    def __init__(self, threshold: float = 0.75) -> None:
        self.threshold = threshold
        self.shingler = Shingler()
        rng = np.random.Generator(np.random.Philox(key=20112))
        self._mul = rng.integers(0, 2**64, BANDS * ROWS, dtype=np.uint64) | np.uint64(1)
        self._bands: list[dict[bytes, list[int]]] = [{} for _ in range(BANDS)]
        self._kept: list[_Kept] = []

    def signature(self, shingles: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """MinHash signature [BANDS, ROWS]: the top 32 bits of a multiplicative hash, least over the set."""
        least = np.full(BANDS * ROWS, 0xFFFFFFFF, dtype=np.uint32)
        for row, mul in enumerate(self._mul):
            least[row] = ((shingles * mul) >> np.uint64(32)).min()
        return least.reshape(BANDS, ROWS)

    def copy_of(self, key: str, text: str) -> tuple[str, float] | None:
        """(key, similarity) of the kept text that this one copies; None keeps it and remembers it."""
        shingles = self.shingler.shingles(text)
        if not len(shingles):
            return None
        names = [row.tobytes() for row in self.signature(shingles)]
        candidates = {i for band, name in zip(self._bands, names, strict=True) for i in band.get(name, ())}
        for i in sorted(candidates):
            other = self._kept[i]
            # |A| / |B| bounds the similarity, so very unequal sizes need no intersection.
            small, large = sorted((len(shingles), len(other.shingles)))
            if small >= self.threshold * large and (score := jaccard(shingles, other.shingles)) >= self.threshold:
                return other.key, score
        for band, name in zip(self._bands, names, strict=True):
            band.setdefault(name, []).append(len(self._kept))
        self._kept.append(_Kept(key, shingles))
        return None

    def __len__(self) -> int:
        return len(self._kept)

    def forget_last(self) -> None:
        """Forget the text that was kept last: it was dropped for another reason, and nothing may be a copy of it."""
        last = self._kept.pop()
        for band, row in zip(self._bands, self.signature(last.shingles), strict=True):
            band[row.tobytes()].pop()
