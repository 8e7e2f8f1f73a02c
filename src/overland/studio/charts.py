"""Charts as plain HTML and inline SVG: lines over steps, intervals, bars and the expert load map.

Only lines are drawn in SVG, stretched over the plot; every word is HTML placed by percentages. Text therefore keeps its
size at any width, and nothing needs a script. Colours are CSS classes (`c-0` .. `c-7`, `c-all`), set for light and dark
in page.css, so that a domain has one colour everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from overland.studio.markup import compact, percent, text

MAX_POINTS = 400
"""A line keeps at most about this many points: more than a screen shows, few enough for a small page."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line: its label, its colour class and its points in order of x. Points that are not finite are left out."""

    label: str
    colour: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Bounds:
    """A proportion with its 95% interval, as shares in 0..1."""

    success: float
    low: float
    high: float
    n: int | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    shares: bool = False,
    from_zero: bool = False,
    references: Sequence[tuple[str, float]] = (),
) -> str:
    """Lines over steps. Where a line is noisy its running mean is drawn thick over the thin raw line.

    `shares` fixes the y axis to 0..100%. `references` are horizontal lines with a name. No points at all: "".
    """
    series = [
        Series(s.label, s.colour, [p for p in s.points if math.isfinite(p[0]) and math.isfinite(p[1])]) for s in series
    ]
    series = [s for s in series if s.points]
    if not series:
        return ""
    window = max(len(s.points) for s in series) // 15
    window = window + 1 - window % 2 if window > 1 else 1  # odd, to lie evenly around a step
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points] + [y for _, y in references]
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1
    y_ticks = [0, 0.25, 0.5, 0.75, 1.0] if shares else nice_ticks(0.0 if from_zero else min(ys), max(ys))
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def across(x: float) -> float:
        return 100 * (x - x_low) / (x_high - x_low)

    def up(y: float) -> float:
        return 100 * (y - y_low) / (y_high - y_low)

    def path(points: Iterable[Point]) -> str:
        return " ".join(f"{across(x):.2f},{100 - up(y):.2f}" for x, y in points)

    drawn, words = [], []
    for tick in y_ticks:
        drawn.append(f'<line class="grid" x1="0" x2="100" y1="{100 - up(tick):.2f}" y2="{100 - up(tick):.2f}"/>')
        label = percent(tick) if shares else compact(tick)
        words.append(f'<span class="ytick" style="bottom:{up(tick):.2f}%">{label}</span>')
    for tick in nice_ticks(x_low, x_high, 5, whole=True):
        if x_low <= tick <= x_high:
            words.append(f'<span class="xtick" style="left:{across(tick):.2f}%">{compact(tick)}</span>')
    for _, y in references:
        drawn.append(f'<line class="reference" x1="0" x2="100" y1="{100 - up(y):.2f}" y2="{100 - up(y):.2f}"/>')
    ends: list[tuple[float, str, str]] = [(up(y), "c-muted", name) for name, y in references]
    for s in series:
        smooth = running_mean(s.points, window)
        if len(s.points) == 1:
            x, y = s.points[0]
            words.append(f'<i class="point {s.colour}" style="left:{across(x):.2f}%;bottom:{up(y):.2f}%"></i>')
        if window > 1:
            drawn.append(f'<polyline class="raw {s.colour}" points="{path(thin(s.points))}"/>')
        drawn.append(f'<polyline class="line {s.colour}" points="{path(thin(smooth))}"/>')
        ends.append((up(smooth[-1][1]), s.colour, s.label))
    for height, colour, label in spread([end for end in ends if end[2]]):
        words.append(f'<span class="endlabel {colour}" style="bottom:{height:.2f}%">{text(label)}</span>')
    note = f"; thick line: mean of {window} steps" if window > 1 else ""
    return (
        f'<figure class="chart"><figcaption>{text(title)} <small>{text(y_label)}{note}</small></figcaption>'
        f'<div class="plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(title)}">{"".join(drawn)}</svg>{"".join(words)}'
        f'<span class="xlabel">{text(x_label)}</span></div></figure>'
    )


def interval_rows(rows: Iterable[tuple[str, str, Bounds]], *, axis: bool = True, unit: str = "tasks solved") -> str:
    """Rows of (label, colour class, bounds): a mark at the rate, a bar over its 95% interval, the figures beside it."""
    parts = []
    for label, colour, b in rows:
        n = f", n&nbsp;{b.n}" if b.n is not None else ""
        parts.append(
            f'<div class="irow"><span class="ilabel">{text(label)}</span><span class="itrack {colour}">'
            f'<i class="ibar" style="left:{100 * b.low:.2f}%;width:{100 * max(0.0, b.high - b.low):.2f}%"></i>'
            f'<i class="idot" style="left:{100 * b.success:.2f}%"></i></span>'
            f'<span class="ival"><b>{percent(b.success)}</b> <small>{percent(b.low)[:-1]}–{percent(b.high)}{n}</small>'
            f"</span></div>"
        )
    if axis:
        ticks = "".join(f'<span style="left:{p}%">{p}%</span>' for p in (0, 25, 50, 75, 100))
        parts.append(
            f'<div class="irow iaxis"><span class="ilabel"></span><span class="iticks">{ticks}</span>'
            f'<span class="ival iunit"><small>{text(unit)}</small></span></div>'
        )
    return "".join(parts)


def bar_rows(rows: Sequence[tuple[str, str, float, str]]) -> str:
    """Rows of (label, colour class, value, value as text), bars from zero to the largest."""
    largest = max((value for _, _, value, _ in rows), default=0.0) or 1.0
    return "".join(
        f'<div class="irow"><span class="ilabel">{text(label)}</span><span class="btrack {colour}">'
        f'<i class="bbar" style="width:{100 * max(value, 0.0) / largest:.2f}%"></i></span>'
        f'<span class="ival"><b>{text(shown)}</b></span></div>'
        for label, colour, value, shown in rows
    )


def load_map(layers: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Expert load: a row a layer, a cell an expert, each the expert's share as a multiple of an even share.

    A cell darkens with load. Under a tenth of an even share an expert is marked dead, from twice on overloaded; both
    carry a sign besides the colour.
    """
    widest = max((len(shares) for _, shares in layers), default=0)
    rows = []
    for name, shares in layers:
        total = sum(shares) or 1.0
        cells = []
        for expert, share in enumerate(shares):
            times = share / total * len(shares)
            state, sign = ("dead", "✕") if times < 0.1 else ("over", "▲") if times >= 2 else ("", "")
            shown = f"{times:.1f}" if widest <= 32 else ""
            tint = min(100.0, 38 * times)
            cells.append(
                f'<span class="cell {state}" style="--load:{tint:.0f}%" '
                f'title="layer {text(name)}, expert {expert}: {times:.2f} times an even share">'
                f"{sign}<span>{shown}</span></span>"
            )
        rows.append(
            f'<div class="lrow"><span class="llabel">layer {text(name)}</span>'
            f'<span class="cells" style="--experts:{len(shares)}">{"".join(cells)}</span></div>'
        )
    return f'<div class="loadmap">{"".join(rows)}</div>'


def nice_ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """About `count` round numbers that span low..high, both ends included."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / max(1, count - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 3 - math.floor(math.log10(step))  # enough for a step of 2.5 times a power of ten
    return [round(i * step, digits) for i in range(first, last + 1)]


def running_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Each y replaced by the mean of the `window` values around it. A trailing mean would show a falling loss too high.

    Near the start the window shrinks evenly, so that the first value stays; at the end it is cut, which keeps it calm.
    """
    sums = [0.0, *accumulate(y for _, y in points)]
    out: list[Point] = []
    for i, (x, _) in enumerate(points):
        reach = min(window // 2, i)
        first, end = i - reach, min(i + reach + 1, len(points))
        out.append((x, (sums[end] - sums[first]) / (end - first)))
    return out


def thin(points: Sequence[Point]) -> list[Point]:
    """At most about MAX_POINTS points, keeping the lowest and the highest of every stretch: no spike is lost."""
    if len(points) <= MAX_POINTS:
        return list(points)
    stretch = math.ceil(2 * len(points) / MAX_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    if kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def spread(labels: Sequence[tuple[float, str, str]], gap: float = 8.0) -> list[tuple[float, str, str]]:
    """Move labels (height in %, colour, words) apart so that none covers another, keeping their order."""
    ordered = sorted(labels)
    heights = [h for h, _, _ in ordered]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    over = heights[-1] - 100 if heights else 0
    if over > 0:  # the topmost left the plot: push down from the top
        heights[-1] = 100.0
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - gap)
    return [(h, colour, words) for h, (_, colour, words) in zip(heights, ordered, strict=True)]
