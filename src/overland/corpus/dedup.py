"""Duplicates: exact documents, near documents, repeated paragraphs. The first in a fixed total order survives.

Near duplicates: MinHash over word 5-grams in 32 bands of 5 rows finds candidates, and the exact Jaccard similarity of
the 5-gram sets decides. A document is only ever dropped in favour of one that stays, so no text loses its last copy.
Sources: Broder 1997; measured settings in the project's data study (recall .999 at J >= .8, precision 1).
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import available, library, pointer
from overland.corpus.dedup_index import read_index, write_index

PARAGRAPHS = "repeated paragraphs"
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


def long_paragraphs(text: str, min_words: int, only_comments: bool) -> list[tuple[int, int]]:
    """(start, end) of each run of lines that are not blank, the last newline included, with at least `min_words` words.

    `only_comments`: only those of which every line begins with `#`. The loop is in `native/paragraphs.c`.
    """
    if not available():
        return [
            (start, end)
            for start, end in _paragraphs(text)
            if len(text[start:end].split()) >= min_words and (not only_comments or _only_comments(text[start:end]))
        ]
    raw = text.encode("utf-8", "surrogatepass")
    room = len(raw) // (2 * min_words) + 1  # a word and what parts it from the next are two bytes at least
    out = np.empty((room, 2), dtype=np.int64)
    run = library().overland_paragraphs
    run.restype = ctypes.c_int64
    count = run(
        ctypes.c_char_p(raw),
        *(ctypes.c_int64(len(raw)), ctypes.c_int64(min_words), ctypes.c_int(only_comments)),
        *(pointer(out), ctypes.c_int64(room)),
    )
    return [(start, end) for start, end in out[:count].tolist()]


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each run of lines that are not blank, the last newline included."""
    start, at = -1, 0
    for line in text.split("\n"):
        if line and not line.isspace():
            start = at if start < 0 else start
        elif start >= 0:
            yield start, at
            start = -1
        at += len(line) + 1
    if start >= 0:
        yield start, len(text)


class RepeatedParagraphs:
    """Cuts paragraphs that an earlier document (or an earlier place) already had, white space aside."""

    def __init__(self, min_words: int) -> None:
        self.min_words = min_words
        self._seen: dict[bytes, tuple[str, int]] = {}
        self._fresh: list[bytes] = []

    def cut(self, key: str, text: str, domain: str) -> tuple[str, list[tuple[int, int, str]]]:
        """The text without its repeated paragraphs, and (start, end, key of the first holder) of each cut.

        In code only blocks of comments are cut: taking a statement out would leave a program that does not parse.
        """
        pieces: list[str] = []
        cuts: list[tuple[int, int, str]] = []
        at = 0
        self._fresh.clear()
        for start, end in long_paragraphs(text, self.min_words, domain == "code"):
            words = " ".join(text[start:end].split())
            digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            digest += domain.encode()
            first = self._seen.setdefault(digest, (key, start))
            if first == (key, start):
                self._fresh.append(digest)
                continue
            pieces.append(text[at:start])
            at = end
            cuts.append((start, end, first[0]))
        return ("".join(pieces) + text[at:] if cuts else text), cuts

    def forget_last(self) -> None:
        """Forget what the last `cut` remembered: its text was dropped, and nothing may be a repeat of it."""
        for digest in self._fresh:
            del self._seen[digest]
        self._fresh.clear()

    def save(self, path: Path) -> None:
        """Write what is remembered to one file, atomically and with checksums."""
        rows = sorted(self._seen.items())
        ids = {
            name: at
            for at, name in enumerate(sorted({key for _, (key, _) in rows} | {d[16:].decode() for d, _ in rows}))
        }
        arrays = {
            "digest": np.frombuffer(b"".join(digest[:16] for digest, _ in rows), dtype="u1").reshape(-1, 16),
            "domain": np.array([ids[digest[16:].decode()] for digest, _ in rows], dtype="<u4"),
            "text": np.array([ids[key] for _, (key, _) in rows], dtype="<u4"),
            "start": np.array([start for _, (_, start) in rows], dtype="<i8"),
        }
        write_index(path, PARAGRAPHS, {"digest": "blake2b-128"}, list(ids), arrays)

    @classmethod
    def load(cls, path: Path, min_words: int) -> RepeatedParagraphs:
        """Go on from a saved index. Raises BrokenFileError naming a damaged file."""
        index = cls(min_words)
        ids, arrays = read_index(path, PARAGRAPHS, {"digest": "blake2b-128"})
        columns = (arrays[name].tolist() for name in ("domain", "text", "start"))
        for digest, domain, text, start in zip(arrays["digest"], *columns, strict=True):
            index._seen[digest.tobytes() + ids[domain].encode()] = (ids[text], start)
        return index


def _only_comments(paragraph: str) -> bool:
    return all(line.lstrip().startswith("#") for line in paragraph.removesuffix("\n").split("\n"))
