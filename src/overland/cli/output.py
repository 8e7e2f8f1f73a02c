"""What a command prints: results on stdout, everything else on stderr, JSON where a machine reads."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_continuation = ""


def resumes_with(command: str) -> None:
    """Note the command line that continues this one after Ctrl-C."""
    global _continuation
    _continuation = command


def resume_line() -> str:
    """What to say when the running command was stopped."""
    if not _continuation:
        return "Nothing was left half written; run the same command again."
    return f"What was finished is kept. Continue with: {_continuation}"


def fail(message: str, code: int) -> int:
    """One line on stderr; returns the exit code."""
    print(message, file=sys.stderr)
    return code


def printable(text: str) -> str:
    """Text that a model or a stranger wrote, without the control characters that would command a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)


def print_json(value: Any) -> None:
    """A value as JSON on stdout. What is not a number is null: no reader should meet NaN."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_pairs(pairs: dict[str, Any], indent: str = "") -> None:
    """Names and values in two columns."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        print(f"{indent}{name:<{width}}  {value}")


def print_table(rows: list[list[str]], header: list[str]) -> None:
    """A plain table; columns of figures are set right."""
    every = [header, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(header))]
    right = [all(_is_figure(row[at]) for row in rows) for at in range(len(header))]
    for row in every:
        cells = [
            cell.rjust(width) if figures else cell.ljust(width)
            for cell, width, figures in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _is_figure(cell: str) -> bool:
    return bool(cell) and cell.strip("-+").replace(",", "").replace(".", "").replace("%", "").isdigit()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
