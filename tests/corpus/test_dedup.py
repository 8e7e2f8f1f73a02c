"""Near duplicates held against the exhaustive Jaccard of plain Python sets, on planted copies; repeated paragraphs."""

from __future__ import annotations

import random
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import dedup_paragraphs
from overland.corpus.dedup import NearDuplicates, jaccard, normalised_hash
from overland.corpus.dedup_paragraphs import RepeatedParagraphs, long_paragraphs

from .conftest import RARE, prose


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return set(zip(*(words[i:] for i in range(5)), strict=False))


def exhaustive(a: set[tuple[str, ...]], b: set[tuple[str, ...]]) -> float:
    return len(a & b) / len(a | b)


def edited(text: str, share: float, rng: random.Random) -> str:
    return " ".join(rng.choice(RARE) if rng.random() < share else word for word in text.split(" "))


def planted() -> list[str]:
    rng = random.Random(5)
    texts = []
    for number in range(60):
        original = prose(number, rng.randint(60, 400))
        texts.append(original)
        texts += [edited(original, share, rng) for share in (0.004, 0.01, 0.02, 0.04)]
    rng.shuffle(texts)
    return texts


def test_every_planted_copy_is_found_and_only_copies_are() -> None:
    texts = planted()
    sets = [grams(text) for text in texts]
    near = NearDuplicates(0.75)
    kept: list[int] = []
    copies = 0
    for i, text in enumerate(texts):
        found = near.copy_of(str(i), text)
        best = max((exhaustive(sets[i], sets[j]) for j in kept), default=0.0)
        if found is None:
            # Misses of the hash tables would show here: 32 bands of 5 miss a pair at .8 once in 300,000.
            assert best < 0.8
            kept.append(i)
        else:
            assert int(found[0]) in kept
            assert abs(exhaustive(sets[i], sets[int(found[0])]) - found[1]) < 1e-9
            assert found[1] >= 0.75
            copies += 1
    assert copies > 80
    assert len(kept) >= 60


def test_no_document_loses_its_last_copy() -> None:
    near = NearDuplicates(0.75)
    text = prose("same")
    assert near.copy_of("a", text) is None
    assert [near.copy_of(key, text) for key in "bc"] == [("a", 1.0), ("a", 1.0)]


def test_signature_does_not_depend_on_the_process() -> None:
    near = NearDuplicates()
    shingles = near.shingler.shingles("the quick brown fox jumps over the lazy dog")
    # 9 words make 5 five-grams; the value pins the hash, so that a stored signature stays comparable.
    assert len(shingles) == 5
    assert np.array_equal(near.signature(shingles), NearDuplicates().signature(shingles))
    assert near.signature(shingles).shape == (32, 5)


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_jaccard_is_that_of_sets(a: set[int], b: set[int]) -> None:
    expected = len(a & b) / len(a | b) if a and b else 0.0
    left, right = (np.array(sorted(s), dtype=np.uint64) for s in (a, b))
    assert jaccard(left, right) == expected


def test_white_space_does_not_make_a_document_new() -> None:
    assert normalised_hash("a  b\n\nc\n") == normalised_hash("a b c")
    assert normalised_hash("a b c") != normalised_hash("a bc")


def test_repeated_paragraph_is_cut_and_its_span_names_the_first_holder() -> None:
    cutter = RepeatedParagraphs(20)
    first, second, shared = prose(1, 40), prose(2, 40), prose("s", 30)
    text = (first + "\n" + shared).encode()
    assert cutter.cut("one", text, "prose") == (text, [])
    text = second + "\n" + shared + "\n" + prose(3, 30)
    out, cuts = cutter.cut("two", text.encode(), "prose")
    assert [(text[a:b], holder) for a, b, holder in cuts] == [(shared, "one")]
    assert out.decode() == text.replace(shared, "")


def test_paragraph_repeated_inside_one_document_keeps_its_first() -> None:
    shared = prose("s", 30)
    out, cuts = RepeatedParagraphs(20).cut("one", f"{shared}\n{shared}\n{shared}".encode(), "prose")
    assert out.count(shared.encode()) == 1
    assert len(cuts) == 2


def test_code_loses_repeated_comments_only() -> None:
    header = "# " + " ".join(RARE[:30]) + "\n"
    body = "".join(f"value_{i} = compute(value_{i}, 3)\n" for i in range(20))
    cutter = RepeatedParagraphs(20)
    cutter.cut("one", (header + "\n" + body).encode(), "code")
    out, cuts = cutter.cut("two", (header + "\n" + body).encode(), "code")
    assert out.decode() == "\n" + body
    assert len(cuts) == 1


@given(st.text(alphabet="ab \n\t\u2003", max_size=200))
def test_cutting_keeps_all_that_is_not_cut(text: str) -> None:
    out, cuts = RepeatedParagraphs(1).cut("x", text.encode(), "prose")
    rebuilt, at = "", 0
    for start, end, _ in cuts:
        rebuilt += text[at:start]
        at = end
    assert rebuilt + text[at:] == out.decode()


@given(
    st.text(st.sampled_from("ab# \n\n\t\x0b\x0c\x1c\u00a0\u3000é日"), max_size=200),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_long_paragraphs_are_those_of_plain_python(text: str, min_words: int, only_comments: bool) -> None:
    found = long_paragraphs(text.encode(), min_words, only_comments)
    assert found == dedup_paragraphs._long_paragraphs(text, min_words, only_comments)
    for (start, end, first, last), words in zip(*found, strict=True):
        assert text.encode()[start:end].decode() == text[first:last]
        assert text[first:last].split() == words.decode().split(" ")
