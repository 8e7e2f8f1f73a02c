"""Repeated spans: planted passages at several levels of edits, checked with the longest common subsequence."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus.compiled import Packed
from overland.corpus.dedup_spans import RepeatedSpan, RepeatedSpans
from overland.errors import BrokenFileError, UsageError

from .conftest import RARE, prose


def common(a: list[str], b: list[str]) -> int:
    """Longest common subsequence by the plain table."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = 0
        for j, y in enumerate(b):
            above, row[j + 1] = row[j + 1], above + 1 if x == y else max(row[j], row[j + 1])
    return row[-1]


def agreement(texts: dict[str, str], host: str, span: RepeatedSpan) -> float:
    mine = texts[host].encode()[span.start : span.end].decode().lower().split()
    theirs = texts[span.source].encode()[span.source_start : span.source_end].decode().lower().split()
    return common(mine, theirs) / max(len(mine), len(theirs))


def planted(seed: int, reorder: bool = False) -> tuple[dict[str, str], list[tuple[str, int, int, float]]]:
    rng = random.Random(seed)
    texts, truth = {}, []
    for n in range(90):
        donor, host = prose(f"donor {seed} {n}", 400), prose(f"host {seed} {n}", 200)
        words = donor.split()
        start, size, level = rng.randrange(100, 200), rng.randrange(60, 150), (0.0, 0.02, 0.05)[n % 3]
        piece: list[str] = []
        for word in words[start : start + size]:
            if rng.random() >= level:
                piece.append(word)
            elif (action := rng.randrange(3)) != 0:
                piece += [rng.choice(RARE)] if action == 1 else [word, rng.choice(RARE)]
        if reorder:
            third = len(piece) // 3
            piece = piece[third : 2 * third] + piece[:third] + piece[2 * third :]
        put = "\n".join(" ".join(piece[i : i + 11]) for i in range(0, len(piece), 11))
        texts[f"d{n}"], texts[f"h{n}"] = donor, f"{host}\n{put}\n{prose(f'tail {seed} {n}', 60)}"
        truth.append((f"h{n}", len(host) + 1, len(host) + 1 + len(put), level))
    return texts, truth


@pytest.mark.parametrize("reorder", [False, True])
def test_planted_passages_are_found_with_their_source(reorder: bool) -> None:
    texts, truth = planted(3, reorder)
    names = list(texts)
    decisions = dict(zip(names, RepeatedSpans().add(Packed.of(list(texts.values())), names), strict=True))
    covered: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    outside = 0
    for host, start, end, level in truth:
        for span in decisions[host].spans:
            covered[level][0] += max(0, min(end, span.end) - max(start, span.start))
            outside += max(0, start - span.start) + max(0, span.end - end)
            assert span.source == f"d{host[1:]}"
            assert agreement(texts, host, span) >= 0.75
        covered[level][1] += end - start
    shares = {level: found / size for level, (found, size) in covered.items()}
    assert shares[0.0] >= 0.995, shares
    assert shares[0.02] >= 0.98, shares
    assert shares[0.05] >= 0.96, shares
    assert outside < 100  # characters, over ninety passages
    assert not any(decisions[f"d{n}"].spans for n in range(90))


def test_a_text_that_repeats_itself_keeps_its_first() -> None:
    part = prose("again", 80)
    text = f"{prose(1, 90)}\n{part}\n{prose(2, 90)}\n{part}\n{part}"
    (decision,) = RepeatedSpans().add(Packed.of([text]), ["a"])
    assert sum(span.end - span.start for span in decision.spans) == pytest.approx(2 * len(part), abs=12)
    assert all(span.source == "a" and span.source_end <= span.start for span in decision.spans)
    rest = cut(text, decision.spans)
    assert part.strip(" .\n") in rest


def cut(text: str, spans: tuple[RepeatedSpan, ...]) -> str:
    raw, out, at = text.encode(), b"", 0
    for span in spans:
        out += raw[at : span.start]
        at = span.end
    return (out + raw[at:]).decode()


def test_text_of_which_too_little_is_left_is_dropped_and_is_no_source() -> None:
    part, fresh = prose("shared", 100), prose("fresh", 30)
    index = RepeatedSpans(min_words=20)
    decisions = index.add(Packed.of([part, f"{part}\n{fresh}", fresh]), ["a", "b", "c"], min_left=50)
    assert [d.dropped for d in decisions] == [False, True, False]
    # "b" went with its thirty new words, so those are new in "c".
    assert not decisions[2].spans
    assert index.ids == ["a", "c"]


def test_nothing_loses_its_last_copy() -> None:
    rng = random.Random(4)
    pool = [prose(f"pool {n}", 50) for n in range(30)]
    texts = ["\n\n".join(rng.sample(pool, 5)) for _ in range(60)]
    decisions = RepeatedSpans().add(Packed.of(texts), [str(i) for i in range(60)])
    left = " ".join(re.sub(r"\W+", " ", cut(t, d.spans)) for t, d in zip(texts, decisions, strict=True))
    for passage in pool:
        if any(passage in text for text in texts):
            assert re.sub(r"\W+", " ", passage).strip() in left


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_spans_lie_on_words_in_order_and_agree_with_their_source(seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = ["alpha", "Überzug", "日", "x_1", "—", "naïve", "42", "Ж"]
    texts = {}
    for n in range(6):
        words = [rng.choice(vocabulary) for _ in range(rng.randrange(0, 150))]
        if n and rng.random() < 0.8:
            words += texts[f"{rng.randrange(n)}"].split(" ")[: rng.randrange(120)]
        texts[f"{n}"] = " ".join(words)
    index = RepeatedSpans(min_words=12)
    for name, decision in zip(texts, index.add(Packed.of(list(texts.values())), list(texts)), strict=True):
        end, raw = 0, texts[name].encode()
        for span in decision.spans:
            assert end <= span.start < span.end <= len(raw)
            end = span.end
            assert raw[span.start : span.end].decode() == raw[span.start : span.end].decode().strip(" —")
            source = texts[span.source].encode()
            assert source[span.source_start : span.source_end].decode()
            assert span.identity >= 0.75
            assert span.source != name or span.source_end <= span.start


@given(cuts=st.lists(st.integers(0, 180), max_size=3), saved=st.booleans())
@settings(max_examples=8, deadline=None)
def test_batches_and_a_saved_index_decide_like_one_batch(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], saved: bool
) -> None:
    texts, _ = planted(9)
    names, values = list(texts), list(texts.values())
    whole = RepeatedSpans().add(Packed.of(values), names)
    path = tmp_path_factory.mktemp("spans") / "spans.index"
    index, parts = RepeatedSpans(), []
    bounds = [0, *sorted(cuts), len(texts)]
    for start, end in itertools.pairwise(bounds):
        parts += index.add(Packed.of(values[start:end]), names[start:end])
        if saved:
            index.save(path)
            index = RepeatedSpans.load(path)
    assert parts == whole


def test_index_of_other_settings_or_damaged_is_refused(tmp_path: Path) -> None:
    index = RepeatedSpans()
    index.add(Packed.of([prose(1)]), ["a"])
    path = tmp_path / "spans.index"
    index.save(path)
    with pytest.raises(UsageError, match="window"):
        RepeatedSpans.load(path, window=9)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BrokenFileError, match="damaged"):
        RepeatedSpans.load(path)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="min_words=3"):
        RepeatedSpans(min_words=3)
    with pytest.raises(UsageError, match="1 texts but 2 ids"):
        RepeatedSpans().add(Packed.of(["a"]), ["a", "b"])
