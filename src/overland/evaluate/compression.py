"""What a compressor and a counting model make of the same text: the floor under a language model's bits per byte.

Two baselines, both over the raw bytes of the held-out documents, so that they compare with a model of any vocabulary:

- `gzip_bits_per_byte`: plain ``gzip -9`` of the held-out documents joined end to end. gzip has never seen the training
  split (no dictionary); it is the figure a reader can redo with one shell command.
- `KneserNey`: a byte-level interpolated modified Kneser-Ney model (order 5: four bytes of context) counted on the
  training split. It shares the model's training text, so beating it means more than beating gzip.

Source: Chen & Goodman 1999, "An empirical study of smoothing techniques for language modeling" (modified Kneser-Ney,
interpolated, discounts from counts of counts). Every document starts after `order - 1` start symbols, which are never
predicted.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overland.errors import UsageError

START = 256
"""The symbol before the first byte of a document. Bytes are 0..255, so a symbol takes nine bits."""
BITS = 9
LARGEST_ORDER = 64 // BITS

Keys = NDArray[np.uint64]


def gzip_bits_per_byte(documents: Iterable[bytes]) -> float:
    """Bits per byte of ``gzip -9`` over the documents joined end to end, container included. No bytes: UsageError."""
    text = b"".join(documents)
    if not text:
        raise UsageError("held-out text: no bytes to compress; give at least one document that is not empty")
    return 8 * len(gzip.compress(text, compresslevel=9, mtime=0)) / len(text)


@dataclass(frozen=True)
class _Order:
    """One order's counts: the n-grams seen, sorted by key, and sums by context (the n-gram without its last symbol)."""

    grams: Keys
    discounted: NDArray[np.float64]
    """[grams] count - D(count), never negative; the count is a continuation count below the highest order."""
    contexts: Keys
    totals: NDArray[np.float64]
    """[contexts] sum of counts of the n-grams in this context."""
    kept_back: NDArray[np.float64]
    """[contexts] the mass the discounts took: gamma(h) * total(h), given to the next lower order."""
    discounts: tuple[float, float, float]


class KneserNey:
    """Interpolated modified Kneser-Ney over bytes.

    `KneserNey(documents, order=5)` counts; `bits_per_byte(documents)` evaluates; `distribution(context)` gives all 256
    probabilities. Six megabytes of training text take a few seconds and well under 1 GB (sorted 64-bit keys, no dict).
    """

    def __init__(self, documents: Iterable[bytes], order: int = 5) -> None:
        if not 1 <= order <= LARGEST_ORDER:
            raise UsageError(f"order = {order}: give 1 to {LARGEST_ORDER}, so that an n-gram fits a 64-bit key")
        self.order = order
        grams = _windows(documents, order)
        if not len(grams):
            raise UsageError("training text: no bytes to count; give at least one document that is not empty")
        grams.sort()
        grams, counts = _runs(grams)
        orders = [_discount(grams, counts)]
        for lower in range(order - 1, 0, -1):
            # An n-gram's continuation count is the number of distinct symbols seen before it: drop the first symbol of
            # each distinct longer n-gram and count what collides.
            suffixes = grams & np.uint64((1 << (BITS * lower)) - 1)
            suffixes.sort()
            grams, counts = _runs(suffixes)
            orders.append(_discount(grams, counts))
        self._orders = orders[::-1]  # [0] is the unigram

    @property
    def discounts(self) -> list[tuple[float, float, float]]:
        """(D1, D2, D3+) by order, unigram first."""
        return [o.discounts for o in self._orders]

    def bits_per_byte(self, documents: Iterable[bytes]) -> float:
        """Mean of -log2 p(byte | the bytes before it in its document) over all bytes of `documents`."""
        windows = _windows(documents, self.order)
        if not len(windows):
            raise UsageError("held-out text: no bytes to measure; give at least one document that is not empty")
        # In slices: the whole held-out split at once would hold a dozen temporaries of its length.
        bits = [-np.log2(self._probabilities(windows[i : i + 500_000])).sum() for i in range(0, len(windows), 500_000)]
        return float(sum(bits) / len(windows))

    def distribution(self, context: bytes) -> NDArray[np.float64]:
        """[256] p(byte | context); only the last `order - 1` bytes matter, a shorter context is a document's start."""
        width = self.order - 1
        symbols = [START] * width + list(context)
        key = 0
        for symbol in symbols[len(symbols) - width :]:
            key = key << BITS | symbol
        return self._probabilities(np.uint64(key << BITS) + np.arange(256, dtype=np.uint64))

    def _probabilities(self, windows: Keys) -> NDArray[np.float64]:
        """[N] p(last symbol | the symbols before it) for N packed windows of `order` symbols."""
        p = np.full(len(windows), 1 / 256)
        for n, counts in enumerate(self._orders, start=1):
            keys = windows & np.uint64((1 << (BITS * n)) - 1)
            context, known = _find(counts.contexts, keys >> np.uint64(BITS))
            gram, seen = _find(counts.grams, keys)
            total = counts.totals[context]
            mass = np.where(seen, counts.discounted[gram], 0.0) + counts.kept_back[context] * p
            p = np.where(known, mass / total, p)  # an unseen context says nothing: the shorter one answers
        return p


def baselines(train: Sequence[bytes], held_out: Sequence[bytes], order: int = 5) -> dict[str, float]:
    """Bits per byte of both baselines on the held-out documents: {"gzip": ..., "kn5": ...} (named by order)."""
    return {
        "gzip": gzip_bits_per_byte(held_out),
        f"kn{order}": KneserNey(train, order).bits_per_byte(held_out),
    }


def _windows(documents: Iterable[bytes], order: int) -> Keys:
    """[bytes] one packed window a byte: it and the `order - 1` symbols before it, START before the document's first."""
    padding = np.full(order - 1, START, dtype=np.uint16)
    parts: list[NDArray[np.uint16]] = []
    for document in documents:
        if document:
            parts += [padding, np.frombuffer(document, dtype=np.uint8).astype(np.uint16)]
    if not parts:
        return np.empty(0, dtype=np.uint64)
    symbols = np.concatenate(parts)
    length = len(symbols) - (order - 1)
    keys = np.zeros(length, dtype=np.uint64)
    for offset in range(order):
        keys <<= np.uint64(BITS)
        keys |= symbols[offset : offset + length]
    return keys[symbols[order - 1 :] != START]  # a start symbol is context only


def _runs(sorted_keys: Keys) -> tuple[Keys, NDArray[np.int64]]:
    """Distinct keys and how often each occurs."""
    first = np.flatnonzero(np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1])))
    return sorted_keys[first], np.diff(np.append(first, len(sorted_keys)))


def _discount(grams: Keys, counts: NDArray[np.int64]) -> _Order:
    """Apply the three discounts, estimated from how many n-grams occur once to four times."""
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if min(n1, n2, n3) > 0:
        y = n1 / (n1 + 2 * n2)
        estimates = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        # Byte unigrams are few and rarely rare, so their estimates can leave the range where probabilities make sense.
        d1, d2, d3 = (min(max(d, 0.0), float(c)) for c, d in enumerate(estimates, start=1))
    else:
        d1, d2, d3 = 0.5, 1.0, 1.5  # too little text to estimate from; the values KenLM falls back to
    if d1 == d2 == d3 == 0:
        d1, d2, d3 = 0.5, 1.0, 1.5  # without any discount an unseen byte would have probability 0
    taken = np.array([0.0, d1, d2, d3])[np.minimum(counts, 3)]
    first = np.flatnonzero(np.concatenate(([True], (grams[1:] >> np.uint64(BITS)) != (grams[:-1] >> np.uint64(BITS)))))
    return _Order(
        grams=grams,
        discounted=counts - taken,
        contexts=grams[first] >> np.uint64(BITS),
        totals=np.add.reduceat(counts.astype(np.float64), first),
        kept_back=np.add.reduceat(taken, first),
        discounts=(d1, d2, d3),
    )


def _find(table: Keys, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Index of each key in the sorted table (any index where absent) and whether it is there."""
    index = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return index, table[index] == keys
