"""Two pictures as SVG: ranked layouts with where their time goes, and how far predictions were from measured times."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor
from statistics import median

from overland.parallel.planner.prediction import Prediction

# One colour for one thing everywhere; light enough for dark text, dark enough for white paper and black alike.
COLOURS = {
    "matrix products": "#4c78a8",
    "attention": "#72b7b2",
    "memory traffic": "#eeca3b",
    "launches": "#b8b0ac",
    "all-to-all": "#e45756",
    "tensor-parallel messages": "#f58518",
    "context-parallel messages": "#d67195",
    "pipeline messages": "#b279a2",
    "data-parallel messages": "#9d755d",
    "optimiser": "#79706e",
    "pipeline bubble": "#d8d8d8",
}
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#222}.q{fill:#666}.a{stroke:#888;fill:none}"
    "@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e6e6e6}.q{fill:#aaa}}</style>"
)


def layout_chart(ranking: Sequence[Prediction]) -> str:
    """Bars of step time, fastest on top, each cut by what the time goes into; memory and MFU stand beside them."""
    job = ranking[0].job
    left, bar, row, top = 440, 400, 26, 64
    width, height = left + bar + 170, top + row * len(ranking) + 72
    longest = max(found.step_s for found in ranking)
    body = [
        _text(16, 26, f"{job.model.name} on {job.ranks:,} {job.gpu.name.upper()}, {job.precision}", size=16, bold=True),
        _text(16, 46, f"batch {job.gbs:,} x {job.seq:,} tokens; predicted seconds a step", quiet=True),
        _text(left + bar + 8, 46, "seconds", quiet=True),
        _text(left + bar + 76, 46, "MFU", quiet=True),
        _text(left + bar + 124, 46, "GiB", quiet=True),
    ]
    used: dict[str, None] = {}
    for at, found in enumerate(ranking):
        y, x = top + row * at, float(left)
        label = f"{found.job.layout}, mbs={found.job.mbs}"
        body.append(_text(left - 8, y + 16, label, anchor="end", size=11))
        for name, share in found.shares.items():
            length = bar * found.step_s * share / longest
            used[name] = None
            body.append(
                f'<rect x="{x:.1f}" y="{y + 3}" width="{length:.1f}" height="{row - 7}" fill="{COLOURS[name]}">'
                f"<title>{escape(name)}: {share:.1%}</title></rect>"
            )
            x += length
        body.append(_text(left + bar + 8, y + 16, f"{found.step_s:.2f}"))
        body.append(_text(left + bar + 76, y + 16, f"{found.mfu:.0%}"))
        body.append(_text(left + bar + 124, y + 16, f"{found.memory.gib:.0f}"))
    y, x = top + row * len(ranking) + 24, 16
    for name in (name for name in COLOURS if name in used):
        step = 24 + 7 * len(name)
        if x + step > width:
            x, y = 16, y + 20
        body.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{COLOURS[name]}"/>')
        body.append(_text(x + 16, y, name, size=12))
        x += step + 8
    return _svg(width, height, body)


def error_chart(errors: Sequence[tuple[float, str]]) -> str:
    """A row of points a group, (predicted / measured - 1, group); the band is 10% to either side, bars are medians."""
    groups = sorted({group for _, group in errors})
    left, top, row, side = 150, 70, 30, 460
    reach = max(0.2, ceil(max(abs(error) for error, _ in errors) * 10) / 10)
    width, height = left + side + 150, top + row * len(groups) + 64

    def place(error: float) -> float:
        return left + side * (error + reach) / (2 * reach)

    bottom = top + row * len(groups)
    body = [
        _text(16, 26, "Step time of models that the fit never saw", size=16, bold=True),
        _text(16, 46, "each model left out of the fit in turn; a point is a measured run", quiet=True),
        f'<rect x="{place(-0.1):.1f}" y="{top}" width="{place(0.1) - place(-0.1):.1f}" height="{bottom - top}" '
        'fill="#888" opacity="0.22"/>',
    ]
    step = 0.1 if reach <= 0.6 else 0.2
    for at in range(-floor(reach / step + 1e-9), floor(reach / step + 1e-9) + 1):
        x = place(at * step)
        body.append(f'<path class="a" opacity="{0.8 if at == 0 else 0.25}" d="M{x:.1f} {top}V{bottom}"/>')
        body.append(_text(x, bottom + 18, f"{at * step:+.0%}" if at else "0", anchor="middle", quiet=True, size=11))
    body.append(_text(left + side / 2, bottom + 40, "predicted over measured seconds, minus 1", anchor="middle"))
    for at, group in enumerate(groups):
        y = top + row * (at + 0.5)
        found = [error for error, own in errors if own == group]
        body.append(_text(left - 10, y + 4, group, anchor="end", size=12))
        for error in found:
            body.append(
                f'<circle cx="{place(error):.1f}" cy="{y:.1f}" r="4" fill="#4c78a8" fill-opacity="0.45">'
                f"<title>{escape(group)}: {error:+.1%}</title></circle>"
            )
        middle = median(found)
        x = place(middle)
        body.append(f'<path stroke="#e45756" stroke-width="3" d="M{x:.1f} {y - 10:.1f}v20"/>')
        body.append(_text(left + side + 12, y + 4, f"{middle:+.1%}, {len(found)} runs", size=12))
    return _svg(width, height, body)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, bold: bool = False, quiet: bool = False
) -> str:
    weight = ";font-weight:600" if bold else ""
    kind = ' class="q"' if quiet else ""
    return (
        f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="font-size:{size}px{weight}">'
        f"{escape(text)}</text>"
    )


def _svg(width: float, height: float, body: Sequence[str]) -> str:
    inner = "\n".join(body)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return f"{head}{STYLE}\n{inner}\n</svg>\n"
