"""Near-duplicate documents, held against exhaustive Jaccard over plain Python sets, and their index on disk."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import compiled
from overland.corpus.compiled import Packed
from overland.corpus.dedup_documents import Copy, NearDocuments, shingles
from overland.errors import BrokenFileError, OverlandError, UsageError

from .conftest import prose
from .test_dedup import edited, exhaustive, planted


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return set(zip(*(words[i:] for i in range(5)), strict=False))


def test_every_planted_copy_is_found_and_only_copies_are() -> None:
    texts = planted()
    sets = [grams(text) for text in texts]
    copies = NearDocuments(0.75).add(Packed.of(texts), [str(i) for i in range(len(texts))])
    kept: list[int] = []
    for i, copy in enumerate(copies):
        best = max((exhaustive(sets[i], sets[j]) for j in kept), default=0.0)
        if copy is None:
            assert best < 0.8  # between .75 and .8 a pair in six thousand is missed, above it three in a million
            kept.append(i)
        else:
            assert int(copy.id) in kept
            assert copy.similarity == pytest.approx(exhaustive(sets[i], sets[int(copy.id)]), abs=1e-6)
            assert copy.similarity >= 0.75
    assert len(texts) - len(kept) > 80
    assert len(kept) >= 60


def test_short_texts_are_compared_too() -> None:
    rng = random.Random(1)
    texts = [prose(n, 25) for n in range(200)]
    texts += [edited(text, 0.0, rng) + " end" for text in texts]
    copies = NearDocuments().add(Packed.of(texts), [str(i) for i in range(400)])
    assert all(copies[i] is None for i in range(200))
    assert [copies[200 + i] is not None for i in range(200)].count(False) <= 1


def test_reformatting_case_and_punctuation_do_not_make_a_text_new() -> None:
    text = prose("plain", 120)
    markup = "<p>" + text.replace(" ", "\n* ").upper() + "</p>"
    assert NearDocuments().add(Packed.of([text, text.title() + "!!", markup.lower()]), "abc")[1] == Copy("a", 1.0)


def test_scripts_without_spaces_are_compared_by_character() -> None:
    rng = random.Random(2)
    text = "".join(rng.choice("日本語文字列比較検査対象資料") for _ in range(400))
    other = "".join(rng.choice("日本語文字列比較検査対象資料") for _ in range(400))
    near, changed = NearDocuments(), text[:200] + "新" + text[201:]
    assert [c is not None for c in near.add(Packed.of([text, changed, other]), "abc")] == [False, True, False]


def test_texts_without_words_are_no_copies() -> None:
    assert NearDocuments().add(Packed.of(["", " \n", "...", "", "…"]), "abcde") == [None] * 5


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_shingles_are_sorted_distinct_and_blind_to_white_space(a: str, b: str) -> None:
    one, two = shingles(f"{a} {b}"), shingles(f"{a}\n\t{b}")
    assert np.array_equal(one, two)
    assert np.array_equal(one, np.unique(one))


@given(cuts=st.lists(st.integers(0, 300), max_size=4), saved=st.booleans())
@settings(max_examples=10, deadline=None)
def test_batches_and_a_saved_index_decide_like_one_batch(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], saved: bool
) -> None:
    texts = planted()
    ids = [f"t{i}" for i in range(len(texts))]
    whole = NearDocuments().add(Packed.of(texts), ids)
    path = tmp_path_factory.mktemp("near") / "near.index"
    near, parts = NearDocuments(), []
    bounds = [0, *sorted(cuts), len(texts)]
    for start, end in itertools.pairwise(bounds):
        parts += near.add(Packed.of(texts[start:end]), ids[start:end])
        if saved:
            near.save(path)
            near = NearDocuments.load(path)
    assert parts == whole


def test_damaged_index_is_named(tmp_path: Path) -> None:
    near = NearDocuments()
    near.add(Packed.of([prose(1), prose(2)]), ["a", "b"])
    path = tmp_path / "near.index"
    near.save(path)
    data = path.read_bytes()
    for damaged in (data[:-1], data[:30] + b"x" + data[31:], data[:-9] + b"x" + data[-8:], b"PK" + data):
        path.write_bytes(damaged)
        with pytest.raises(BrokenFileError, match=r"near\.index"):
            NearDocuments.load(path)
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"0\.75"):
        NearDocuments.load(path, threshold=0.9)
    assert NearDocuments.load(path).ids == ["a", "b"]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.library.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(OverlandError, match="apt install gcc"):
        NearDocuments()
    compiled.library.cache_clear()


def test_arrow_columns_are_packed_whatever_their_chunks() -> None:
    import pyarrow as pa

    texts = ["one", "", "zwei ü", None, "x" * 50]
    column = pa.chunked_array([pa.array(texts[:2], pa.string()), pa.array(texts[2:], pa.string())])
    for array in (column, column.slice(1, 3), pa.array(texts, pa.large_string())[1:4]):
        packed = Packed.from_arrow(array)
        assert [packed.raw(i).decode() for i in range(len(packed))] == [t or "" for t in array.to_pylist()]
