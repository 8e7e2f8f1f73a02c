"""Charts: where things stand, that no spike is lost, and that odd figures do not break a picture."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.studio.charts import (
    MAX_POINTS,
    Bounds,
    Series,
    interval_rows,
    line_chart,
    load_map,
    nice_ticks,
    running_mean,
    spread,
    thin,
)
from overland.studio.markup import duration, figure, number, percent, text

FINITE = st.floats(-1e6, 1e6)


@given(low=FINITE, high=FINITE, count=st.integers(3, 8))
def test_ticks_are_evenly_spaced_and_span_the_values(low: float, high: float, count: int) -> None:
    low, high = min(low, high), max(low, high)
    ticks = nice_ticks(low, high, count)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step + 1e-9
    assert ticks[-1] >= high - 1e-6 * step - 1e-9
    assert len(ticks) <= 2 * count + 2


def test_the_smallest_figures_have_a_scale() -> None:
    ticks = nice_ticks(0.0, 3.1e-15)
    assert ticks == sorted(set(ticks))
    assert ticks[-1] == 4e-15


@given(st.lists(FINITE, min_size=1, max_size=2000))
def test_thinning_keeps_both_ends_and_every_extreme(values: list[float]) -> None:
    points = [(float(i), v) for i, v in enumerate(values)]
    kept = thin(points)
    assert len(kept) <= MAX_POINTS + 2
    assert kept[-1] == points[-1]
    assert {max(values), min(values)} <= {y for _, y in kept}
    assert kept == sorted(kept)


def test_running_mean_follows_a_fall_without_lagging() -> None:
    points = [(float(i), math.exp(-i / 10)) for i in range(100)]
    smooth = running_mean(points, 9)
    assert smooth[0] == points[0]
    assert all(abs(a[1] - b[1]) < 0.04 for a, b in zip(points, smooth, strict=True))
    assert running_mean([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)], 3) == [(0.0, 1.0), (1.0, 3.0), (2.0, 4.0)]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_labels_never_cover_each_other(heights: list[float]) -> None:
    placed = spread([(h, "c-0", str(i)) for i, h in enumerate(heights)])
    gaps = [b[0] - a[0] for a, b in pairwise(placed)]
    assert all(gap >= 8 - 1e-6 for gap in gaps)
    assert placed[-1][0] <= 100


def test_an_interval_is_drawn_from_its_low_to_its_high_bound() -> None:
    drawn = interval_rows([("after RL", "c-0", Bounds(0.8, 0.75, 0.84, 300))])
    assert 'class="ibar" style="left:75.00%;width:9.00%"' in drawn
    assert 'class="idot" style="left:80.00%"' in drawn
    assert "<b>80%</b> <small>75–84%, n&nbsp;300</small>" in drawn


def test_a_line_leaves_out_what_is_not_finite_and_draws_the_rest() -> None:
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 2.0)]
    drawn = line_chart("loss", [Series("a", "c-0", points)], x_label="step", y_label="nats")
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert '<polyline class="line c-0" points="0.00,100.00 100.00,0.00"/>' in drawn
    assert line_chart("loss", [Series("a", "c-0", [(0.0, math.nan)])], x_label="step", y_label="nats") == ""


def test_one_point_and_a_flat_line_are_drawn_inside_the_plot() -> None:
    for points in ([(5.0, 2.0)], [(0.0, 3.0), (1.0, 3.0)], [(0.0, 0.0), (1.0, 0.0)]):
        drawn = line_chart("x", [Series("a", "c-0", points)], x_label="step", y_label="unit")
        shown = [float(v) for v in re.findall(r"(?:left|bottom):(-?[\d.]+)%", drawn)]
        assert shown
        assert all(0 <= v <= 100 for v in shown)


def test_dead_and_overloaded_experts_carry_a_sign() -> None:
    drawn = load_map([("1", [0.0, 0.25, 0.25, 0.5])])
    assert drawn.count('class="cell dead"') == 1
    assert drawn.count('class="cell over"') == 1
    assert "✕<span>0.0</span>" in drawn
    assert "▲<span>2.0</span>" in drawn
    assert load_map([("1", [0.0, 0.0])]).count("dead") == 2


@pytest.mark.parametrize(
    "value, shown", [(12345.0, "12,345"), (0.123456, "0.123"), (2.0, "2"), (0.0, "0"), (None, "–"), (2.371, "2.37")]
)
def test_figures_read_as_a_person_writes_them(value: float | None, shown: str) -> None:
    assert figure(value) == shown


def test_shares_near_the_ends_are_not_rounded_to_certainty() -> None:
    assert [percent(v) for v in (0.0, 0.004, 0.5, 0.996, 1.0)] == ["0%", "0.4%", "50%", "99.6%", "100%"]


def test_durations_carry_their_unit() -> None:
    assert [duration(v) for v in (2.4, 42, 492, 3900)] == ["2.4 s", "42 s", "8 min 12 s", "1 h 05 min"]
    assert duration(3599.7) == "1 h 00 min"


def test_only_finite_numbers_are_figures() -> None:
    assert [number(v) for v in (1, 2.5)] == [1.0, 2.5]
    assert [number(v) for v in (True, "3", None, math.nan, math.inf)] == [None] * 5


@given(st.text())
def test_escaped_text_holds_no_markup_and_can_be_written(words: str) -> None:
    shown = text(words + "\x1b[2J\u202e\ud800<&>\"'")
    shown.encode("utf-8")
    assert not set("<>\"'\x1b\x00\u202e") & set(shown)
