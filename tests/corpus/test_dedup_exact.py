"""Exact repeats held against plain search in Python, and evaluation items found in training texts."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus.compiled import Packed
from overland.corpus.decontaminate import Decontaminator
from overland.corpus.dedup_exact import (
    EarlierSubstrings,
    ExactSpan,
    RepeatedSubstrings,
    RepeatedUnits,
    whole_characters,
)
from overland.errors import UsageError

from .conftest import RARE, prose
from .test_dedup import edited


def repeated_substrings(texts: list[str], size: int, fresh: int = 0) -> list[tuple[ExactSpan, ...]]:
    """All at once after `fresh` that are only compared with, as one by one; both must be the same."""
    ids = [str(i) for i in range(len(texts))]
    index = RepeatedSubstrings(size)
    found = index.add(Packed.of(texts[:fresh]), ids[:fresh], report=False)
    found += index.add(Packed.of(texts[fresh:]), ids[fresh:])
    again = RepeatedSubstrings(size)
    for i, text in enumerate(texts):
        again.add(Packed.of(["a" * 40 + text]), ["dropped"])
        again.forget_last()
        assert again.add(Packed.of([text]), [ids[i]], report=i >= fresh) == [found[i]]
    return found


@given(
    texts=st.lists(st.text("ab", max_size=70), min_size=1, max_size=5),
    size=st.integers(16, 30),
    fresh=st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_every_long_substring_is_met_and_every_span_is_one(texts: list[str], size: int, fresh: int) -> None:
    fresh = min(fresh, len(texts))
    spans = repeated_substrings(texts, size, fresh)
    for i, text in enumerate(texts):
        covered, last = [False] * len(text), 0
        for span in spans[i]:
            assert i >= fresh
            assert last <= span.start
            assert span.end - span.start >= size
            last = span.end
            source = texts[int(span.source)]
            assert text[span.start : span.end] == source[span.source_start : span.source_end]
            assert int(span.source) < i or span.source_end <= span.start
            covered[span.start : span.end] = [True] * (span.end - span.start)
        if i < fresh:
            continue
        # A repeat that lies wholly in what is left would have been missed.
        for p in range(len(text) - size + 1):
            if not any(covered[p : p + size]):
                assert not any(text[p : p + size] in earlier for earlier in texts[:i]), (i, p)


def test_long_substrings_name_their_source_and_cut_no_character() -> None:
    shared = "日本語のテキスト" * 20
    texts = [f"一{shared}二 {prose(1, 50)}", f"{prose(2, 50)}\n三{shared}四"]
    (span,) = repeated_substrings(texts, 200)[1]
    raw = texts[1].encode()
    start, end = whole_characters(raw, span.start, span.end)
    assert shared in raw[start:end].decode()
    assert span.source == "0"
    with pytest.raises(UsageError, match="at least 16"):
        RepeatedSubstrings(3)


@given(texts=st.lists(st.text("ab", max_size=90), min_size=2, max_size=5), size=st.integers(16, 45))
@settings(max_examples=100, deadline=None)
def test_long_substrings_of_saved_builds_are_met_without_their_text(texts: list[str], size: int) -> None:
    *earlier, text = texts
    with tempfile.TemporaryDirectory() as scratch:
        for number, one in enumerate(earlier):  # a build each, every one against the last
            index = RepeatedSubstrings(size)
            if number:
                index.earlier = EarlierSubstrings.load(f"{scratch}/{number - 1}", size)
            index.add(Packed.of([one]), [str(number)])
            index.save(f"{scratch}/{number}")
        known = EarlierSubstrings.load(f"{scratch}/{len(earlier) - 1}", size)
    spans = known.find(text.encode())
    covered = [False] * len(text)
    for span in spans:
        assert span.end - span.start >= size
        assert not any(covered[span.start : span.end])
        covered[span.start : span.end] = [True] * (span.end - span.start)
        at = earlier[int(span.source)][span.source_start :]
        assert at[:size] == text[span.start : span.start + size]
        for p in range(span.start, span.end - size + 1, known.stride):
            assert any(text[p : p + size] in one for one in earlier)
    sure = size + known.stride - 1
    for p in range(len(text) - sure + 1):
        if not any(covered[p : p + sure]):
            assert not any(text[p : p + sure] in one for one in earlier), (p, spans)


def test_saved_substrings_hold_no_text_and_refuse_another_size(tmp_path: Path) -> None:
    index = RepeatedSubstrings(100)
    texts = [prose(n, 200) for n in range(5)]
    index.add(Packed.of(texts), [str(n) for n in range(5)])
    index.save(tmp_path / "x.index")
    raw = (tmp_path / "x.index").read_bytes()
    assert not any(word.encode() in raw for word in RARE)
    with pytest.raises(UsageError, match="100"):
        EarlierSubstrings.load(tmp_path / "x.index", 200)
    later = RepeatedSubstrings(100)
    later.earlier = EarlierSubstrings.load(tmp_path / "x.index", 100)
    quoted = prose("new", 40) + texts[3][50:450] + prose("more", 40)
    (found,) = later.add(Packed.of([quoted]), ["later"])
    assert [span.source for span in found] == ["3"]
    assert 400 >= found[0].end - found[0].start > 400 - 2 * 10
    assert quoted[found[0].start : found[0].end] == texts[3][found[0].source_start : found[0].source_end]


@given(
    st.lists(
        st.lists(st.sampled_from(["one two", "two  three four", "", " x", "five six seven"]), max_size=8), max_size=4
    )
)
@settings(max_examples=60, deadline=None)
def test_lines_are_those_of_a_plain_dictionary(documents: list[list[str]]) -> None:
    texts = ["\n".join(lines) for lines in documents]
    half, units = len(texts) // 2, RepeatedUnits(paragraphs=False, min_words=2)
    ids = [str(i) for i in range(len(texts))]
    found = units.add(Packed.of(texts[:half]), ids[:half]) + units.add(Packed.of(texts[half:]), ids[half:])
    seen: dict[tuple[str, ...], str] = {}
    for i, text in enumerate(texts):
        expected, at = [], 0
        for line in text.split("\n"):
            words = tuple(line.split())
            if len(words) >= 2:
                if words in seen:
                    expected.append((at, seen[words]))
                seen.setdefault(words, str(i))
            at += len(line) + 1
        assert [(span.start, span.source) for span in found[i]] == expected


def test_paragraphs_are_cut_whole() -> None:
    shared = prose("s", 30)
    texts = [f"{prose(1, 30)}\n{shared}", f"{shared}\n\n{prose(2, 30)}\n  {shared}"]
    first, second = RepeatedUnits(min_words=20).add(Packed.of(texts), ["a", "b"])
    assert not first
    assert [texts[1][s.start : s.end].strip() for s in second] == [shared.strip()] * 2
    assert {s.source for s in second} == {"a"}


def test_evaluation_items_are_found_edited_and_inside_other_text() -> None:
    rng = random.Random(2)
    items = {f"q{n}": prose(f"question {n}", 40) for n in range(20)} | {
        "short": "the quick berta dorisk calota jumps",
        "tiny": "two words",
    }
    texts = [prose(f"train {n}", 120) for n in range(30)]
    texts[3] += " " + edited(items["q7"], 0.05, rng)
    texts[9] = items["q1"][:150] + texts[9]
    texts[11] += " The quick, berta dorisk CALOTA jumps."
    checker = Decontaminator(items)
    found = checker.check(Packed.of(texts))
    assert {i: {s.source for s in c.spans} for i, c in enumerate(found) if c.spans} == {
        3: {"q7"},
        9: {"q1"},
        11: {"short"},
    }
    assert 0.1 < found[3].share < 0.5
    assert checker.too_short == ["tiny"]
    assert len(RARE) > 5
