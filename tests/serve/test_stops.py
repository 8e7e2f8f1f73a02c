"""Stop strings against the plain search on the whole text."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from overland.serve.stops import StopText

TEXT = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple)


@given(TEXT, STOPS, st.lists(st.integers(0, 24)))
def test_what_is_shown_does_not_depend_on_the_pieces(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    watcher = StopText(stops)
    shown, hit = "", None
    for start, end in pairwise(edges):
        piece, hit = watcher.feed(text[start:end])
        shown += piece
        if hit is not None:
            break
    else:
        shown += watcher.rest()
    ends = {text.find(stop) for stop in stops if stop in text}
    if hit is None:
        assert not ends
        assert shown == text
    else:
        assert text.startswith(shown + hit)


@given(TEXT, STOPS)
def test_the_first_stop_string_wins(text: str, stops: tuple[str, ...]) -> None:
    shown, hit = StopText(stops).feed(text)
    places = [text.find(stop) for stop in stops if stop in text]
    assert (hit is None) == (not places)
    if hit is not None:
        assert shown == text[: min(places)]
