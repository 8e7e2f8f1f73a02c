"""Cutting repeated spans out of a text without leaving wreckage.

Prose loses the span with the punctuation that ends it. Code loses whole lines of comments only: taking a statement out
would leave a program that does not parse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from overland.corpus.compiled import characters
from overland.corpus.dedup_spans import RepeatedSpan

_AFTER = re.compile(rb"(?:[.,;:!?)\]}'\"*`>]|\xe2\x80[\x99\x9d]|\xc2\xbb|\xe3\x80[\x81\x82])*")
_WORD = re.compile(rb"[\w\x80-\xff]")
_COMMENT = (b"#", b"//", b"/*", b"*", b"--", b"%", b";")


@dataclass(frozen=True)
class Cut:
    """Characters [start, end) of the text that were cut, and the span that they are of."""

    start: int
    end: int
    span: RepeatedSpan


def cut_spans(
    raw: bytes, spans: Sequence[RepeatedSpan], domain: str, *, exactly: bool = False
) -> tuple[bytes, list[Cut]]:
    """The UTF-8 text without its repeated spans, and what was cut, in characters of the text that came in.

    `exactly` leaves the marks that end a span in prose where they are.
    """
    if not spans:
        return raw, []
    pieces: list[bytes] = []
    cuts: list[Cut] = []
    at = char = 0
    for span in spans:
        if domain == "code":
            places = _comment_lines(raw, span)
        else:
            places = [(span.start, span.end) if exactly else _with_end(raw, span)]
        for start, end in places:
            if start < at or start == end:
                continue
            kept = raw[at:start]
            begin = char + characters(kept)
            char = begin + characters(raw[start:end])
            pieces.append(kept)
            cuts.append(Cut(begin, char, span))
            at = end
    if not cuts:
        return raw, cuts
    return b"".join((*pieces, raw[at:])), cuts


def _with_end(raw: bytes, span: RepeatedSpan) -> tuple[int, int]:
    found = _AFTER.match(raw, span.end)
    return span.start, found.end() if found else span.end


def _comment_lines(raw: bytes, span: RepeatedSpan) -> list[tuple[int, int]]:
    """Runs of whole comment lines inside a span."""
    at = raw.rfind(b"\n", 0, span.start) + 1
    runs: list[tuple[int, int]] = []
    while at < span.end:
        end = raw.find(b"\n", at)
        end = len(raw) if end < 0 else end + 1
        line = raw[at:end].lstrip()
        if line.startswith(_COMMENT) and end <= span.end + 8 and end - len(line) + _marks(line) >= span.start:
            if runs and runs[-1][1] == at:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((at, end))
        at = end
    return runs


def _marks(line: bytes) -> int:
    """Bytes of a line before its first word."""
    found = _WORD.search(line)
    return found.start() if found else len(line.rstrip())
