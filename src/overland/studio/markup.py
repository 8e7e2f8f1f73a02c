"""Text into HTML that cannot run: the one place where the studio escapes what models, tools and files wrote."""

from __future__ import annotations

import html
import math
from typing import Any

_CONTROL = {c: 0x2400 + c for c in range(32) if c not in (9, 10)} | {0x7F: 0x2421}
"""Control characters are drawn as their Unicode pictures: a terminal's escape codes should be seen, not obeyed."""
# Characters that reorder the text around them would let a trajectory show other words than it holds.
_REORDER = {c: f"\\u{c:04x}" for c in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_SHOWN: dict[int, int | str] = {**_CONTROL, **_REORDER}


def text(value: Any) -> str:
    """Any value as text for an element or a quoted attribute: escaped, control characters made visible."""
    string = value if isinstance(value, str) else str(value)
    string = string.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written to a file
    return html.escape(string.translate(_SHOWN), quote=True)


def number(value: Any) -> float | None:
    """A finite float, or None for anything else (a missing, torn or non-finite figure is not drawn)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def figure(value: float | None, digits: int = 3) -> str:
    """A number as a person reads it: 12345 -> 12,345; 0.123456 -> 0.123; None -> an en dash."""
    if value is None:
        return "–"
    if abs(value) >= 1000 or (value == int(value) and abs(value) >= 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def compact(value: float | None) -> str:
    """A count in the space of an axis label: 1200 -> 1.2k, 2500000 -> 2.5M."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as whole percent; a tenth is shown near the ends, where a whole percent would round to 0 or 100."""
    if share is None:
        return "–"
    points = 100 * share
    if 0 < points < 1 or 99 < points < 100:
        return f"{points:.1f}%"
    return f"{points:.0f}%"


def gigabytes(size: float | None) -> str:
    """Bytes as 1.9 GB."""
    return "–" if size is None else f"{size / 1e9:.1f} GB"


def duration(seconds: float | None) -> str:
    """Seconds as 42 s, 3 min 20 s or 1 h 5 min."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
