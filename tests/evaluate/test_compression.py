"""The text baselines, held against a slow Kneser-Ney written from Chen & Goodman's formulas and against zlib."""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import random
import subprocess
import time
import typing
import unittest.mock
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.errors import UsageError
from overland.evaluate.compression import KneserNey, baselines, gzip_bits_per_byte

Gram = tuple[int, ...]
START = -1


class SlowKneserNey:
    """Modified Kneser-Ney with one dictionary an order: slow, literal, and sharing no code with the fast one."""

    def __init__(self, documents: list[bytes], order: int) -> None:
        self.order = order
        raw: Counter[Gram] = Counter()
        for document in documents:
            symbols = [START] * (order - 1) + list(document)
            for end in range(order, len(symbols) + 1):
                raw[tuple(symbols[end - order : end])] += 1
        self.counts: dict[int, Counter[Gram]] = {order: raw}
        for n in range(order - 1, 0, -1):
            before: dict[Gram, set[int]] = defaultdict(set)
            for gram in self.counts[n + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[n] = Counter({gram: len(left) for gram, left in before.items()})
        self.discounts = {n: self._estimate(c) for n, c in self.counts.items()}

    @staticmethod
    def _estimate(counts: Counter[Gram]) -> list[float]:
        n = [sum(1 for c in counts.values() if c == k) for k in range(5)]
        if not (n[1] and n[2] and n[3]):
            return [0.5, 1.0, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        d = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
        d = [min(max(value, 0.0), float(k)) for k, value in enumerate(d, start=1)]
        return d if any(d) else [0.5, 1.0, 1.5]

    def p(self, context: Gram, byte: int, n: int | None = None) -> float:
        n = self.order if n is None else n
        if n == 0:
            return 1 / 256
        h = context[len(context) - (n - 1) :]
        inside = {g[-1]: c for g, c in self.counts[n].items() if g[:-1] == h}
        shorter = self.p(context, byte, n - 1)
        if not inside:
            return shorter
        d, total = self.discounts[n], sum(inside.values())
        own = inside.get(byte, 0)
        kept_back = sum(d[min(c, 3) - 1] for c in inside.values())
        return (max(own - d[min(own, 3) - 1], 0) if own else 0) / total + kept_back / total * shorter


WORDS = [
    w.encode() for w in ("def ", "return ", "self", "(", ")", "\n", " = ", "name", "value", "0", "12", ": ", "import ")
]


def source(module: ModuleType) -> bytes:
    assert module.__file__ is not None
    return Path(module.__file__).read_bytes()


def prose(seed: int, words: int) -> bytes:
    rng = random.Random(seed)
    return b"".join(rng.choices(WORDS, weights=range(1, len(WORDS) + 1), k=words))


def test_probabilities_equal_the_slow_reference() -> None:
    train = [prose(1, 60), b"a", b"", prose(2, 40)]
    for order in (1, 2, 3, 5):
        fast, slow = KneserNey(train, order), SlowKneserNey(train, order)
        for context in (b"", b"d", b"def ", b"self.", b"zz\x00\xff"):
            padded = (START,) * (order - 1) + tuple(context)
            reference = [slow.p(padded[len(padded) - (order - 1) :], byte) for byte in range(256)]
            np.testing.assert_allclose(fast.distribution(context), reference, rtol=1e-12)


def test_bits_per_byte_is_the_mean_over_every_byte_of_every_document() -> None:
    train, held_out = [prose(3, 80), prose(4, 80)], [prose(5, 30), b"q", prose(6, 10)]
    slow = SlowKneserNey(train, 3)
    bits = 0.0
    for document in held_out:
        symbols = (START, START, *document)
        bits -= sum(math.log2(slow.p(symbols[i - 2 : i], symbols[i])) for i in range(2, len(symbols)))
    assert KneserNey(train, 3).bits_per_byte(held_out) == pytest.approx(bits / sum(map(len, held_out)), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.binary(max_size=80), min_size=1, max_size=4).filter(any),
    context=st.binary(max_size=8),
    order=st.integers(1, 6),
)
def test_probabilities_of_all_bytes_sum_to_one(documents: list[bytes], context: bytes, order: int) -> None:
    p = KneserNey(documents, order).distribution(context)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert (p > 0).all()


def test_a_higher_order_models_real_text_better() -> None:
    train, held_out = [source(m) for m in (argparse, typing, inspect, subprocess, unittest.mock)], [source(ast)]
    bits = [KneserNey(train, order).bits_per_byte(held_out) for order in (1, 2, 3, 4, 5)]
    assert bits == sorted(bits, reverse=True)
    assert bits[-1] < bits[0] / 2


def test_gzip_is_the_plain_command_line_figure() -> None:
    documents = [prose(9, 500), prose(10, 500)]
    text = b"".join(documents)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    assert gzip_bits_per_byte(documents) == 8 * len(packer.compress(text) + packer.flush()) / len(text)


def test_baselines_are_named_by_what_they_are() -> None:
    assert set(baselines([prose(11, 100)], [prose(12, 50)])) == {"gzip", "kn5"}


@pytest.mark.parametrize("documents", [[], [b""], [b"", b""]])
def test_empty_text_is_refused_by_name(documents: list[bytes]) -> None:
    with pytest.raises(UsageError, match="no bytes"):
        KneserNey(documents)
    with pytest.raises(UsageError, match="no bytes"):
        gzip_bits_per_byte(documents)
    with pytest.raises(UsageError, match="no bytes"):
        KneserNey([b"text"]).bits_per_byte(documents)


def test_an_order_that_does_not_fit_a_key_is_refused() -> None:
    with pytest.raises(UsageError, match="1 to 7"):
        KneserNey([b"text"], order=8)


def test_six_megabytes_are_counted_within_fifteen_cpu_seconds() -> None:
    train = [prose(seed, 17_000) for seed in range(100)]
    assert 5e6 < sum(map(len, train)) < 8e6
    start = time.process_time()
    KneserNey(train).bits_per_byte([prose(1000, 85_000)])
    assert time.process_time() - start < 15
