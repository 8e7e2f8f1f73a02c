"""Cutting spans: what is left reads on, code still parses, and every cut can be found in the text that came in."""

from __future__ import annotations

import ast
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus.compiled import Packed
from overland.corpus.dedup_cut import cut_spans
from overland.corpus.dedup_spans import RepeatedSpan, RepeatedSpans
from overland.corpus.document import Span
from overland.corpus.trimming import before_cuts

from .conftest import RARE, prose


def test_prose_loses_the_passage_with_its_end_mark() -> None:
    shared = "“" + prose("shared é", 60).strip() + "”"
    texts = [f"{prose(1, 50)}\n{shared}\n{prose(2, 50)}", f"Ünïcode. {prose(3, 60)}\n{shared} {prose(4, 60)}"]
    decision = RepeatedSpans().add(Packed.of(texts), ["a", "b"])[1]
    left_bytes, cuts = cut_spans(texts[1].encode(), decision.spans, "prose")
    left = left_bytes.decode()
    assert prose("shared é", 60).strip()[:-1] not in left
    assert left.count(prose(3, 60).strip()) == left.count(prose(4, 60).strip()) == 1
    assert next(texts[1][c.start : c.end] for c in cuts).endswith(".”")
    assert cuts[0].span.source == "a"


def test_code_loses_comments_only_and_still_parses() -> None:
    rng = random.Random(1)
    words = [rng.choice(RARE) for _ in range(80)]
    header = "".join(f"# {' '.join(words[i : i + 8])}\n" for i in range(0, 80, 8))
    body = "def total(values):\n    result = 0\n" + "".join(f"    result += values[{i}]\n" for i in range(30))
    texts = [header + body + f"X = {n}\n" for n in range(2)]
    decision = RepeatedSpans().add(Packed.of(texts), ["a", "b"])[1]
    left, cuts = cut_spans(texts[1].encode(), decision.spans, "code")
    assert cuts
    assert left.decode() == body + "X = 1\n"
    assert ast.dump(ast.parse(left)) == ast.dump(ast.parse(texts[1]))


@given(text=st.text("aé日 .\n", max_size=80), data=st.data())
@settings(max_examples=60, deadline=None)
def test_cuts_and_what_is_left_make_up_the_text(text: str, data: st.DataObject) -> None:
    raw, spans, at = text.encode(), [], 0
    bounds = [len(text[:i].encode()) for i in range(len(text) + 1)]
    while at < len(text) and data.draw(st.booleans()):
        start = data.draw(st.integers(at, len(text) - 1))
        end = data.draw(st.integers(start + 1, len(text)))
        spans.append(RepeatedSpan(bounds[start], bounds[end], "x", 0, 1, 1, 1.0))
        at = end
    left, cuts = cut_spans(raw, spans, "prose")
    rebuilt, at = "", 0
    for cut in cuts:
        rebuilt += text[at : cut.start]
        at = cut.end
    assert rebuilt + text[at:] == left.decode()
    assert len(raw) >= len(left)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=5))
def test_places_are_found_again_before_the_cuts(gaps: list[tuple[int, int]]) -> None:
    text, cuts, at = "", [], 0
    for kept, removed in gaps:
        cuts.append(Span(at + kept, at + kept + removed, ""))
        at += kept + removed
    text = "".join(chr(0x4E00 + i) for i in range(at + 3))
    left = [c for i, c in enumerate(text) if not any(s.start <= i < s.end for s in cuts)]
    assert [text[before_cuts(cuts, i)] for i in range(len(left))] == left
