"""Lines in an SVG file without a plotting library: axes with units, labels at the lines' ends, light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#d1495b", "#2e86ab", "#66999b", "#8d6a9f", "#b08900")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 64, 210, 22, 52
STYLE = "text{font:13px sans-serif;fill:#333}line{stroke:#8884}@media(prefers-color-scheme:dark){text{fill:#ddd}}"


def line_svg(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
) -> str:
    """Named lines of points (x, y) within the ticks, which also bound the axes."""

    def place(value: float, ticks: Sequence[float], low: float, high: float) -> float:
        scale = math.log if logarithmic else float
        share = (scale(value) - scale(ticks[0])) / (scale(ticks[-1]) - scale(ticks[0]))
        return low + share * (high - low)

    def x(value: float) -> float:
        return place(value, x_ticks, LEFT, WIDTH - RIGHT)

    def y(value: float) -> float:
        return place(value, y_ticks, HEIGHT - BOTTOM, TOP)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"><style>{STYLE}</style>']
    for tick in x_ticks:
        parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    for tick in y_ticks:
        parts.append(f'<line y1="{y(tick):.1f}" y2="{y(tick):.1f}" x1="{LEFT}" x2="{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    at_y = 0.0  # labels from the highest line down, none on another
    ends = sorted(zip(lines.items(), COLOURS, strict=False), key=lambda item: y(item[0][1][-1][1]))
    for (name, points), colour in ends:
        path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x(px):.1f}" cy="{y(py):.1f}" r="3.5" fill="{colour}"/>' for px, py in points]
        at_y = max(at_y + 18, y(points[-1][1]) + 4)
        at = f'x="{WIDTH - RIGHT + 12}" y="{at_y:.1f}"'
        parts.append(f'<text {at} style="fill:{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
