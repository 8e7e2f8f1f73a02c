"""Cutting passages out of a document: held against the rules again, and remembered in places of the text as read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from overland.corpus.document import TRIM, TRIMMED, Document, Span
from overland.corpus.quality import check
from overland.corpus.quality_rules import Limits


def trim(
    profiles: Mapping[str, Limits],
    document: Document,
    utf8: bytes,
    cuts: list[Span],
    stage: str,
    rule: str,
    limit: float,
) -> bool:
    """Put `utf8` in place of the document's text, from which `cuts` (its own characters) are missing, and say so.

    False where the document is dropped instead because `utf8` breaks a rule: too little is left of it.
    """
    broken = check(utf8, document.domain, profiles, document.language)
    if broken:
        document.drop(f"{stage}: too little is left ({document.domain}.{broken})", stage, broken)
        return False
    earlier = disjoint(document.spans_removed)
    for cut in cuts:
        cut.start, cut.end = before_cuts(earlier, cut.start), before_cuts(earlier, cut.end - 1) + 1
    document.spans_removed = [*document.spans_removed, *cuts]
    document.decision, document.reason = TRIMMED, stage
    document.change(stage, TRIM, utf8, rule, sum(cut.end - cut.start for cut in cuts), limit)
    return True


def disjoint(cuts: Iterable[Span]) -> list[Span]:
    """The same characters as spans in order of which none touches another: a later cut may lie around an earlier."""
    out: list[Span] = []
    for cut in sorted(cuts, key=lambda cut: cut.start):
        if out and cut.start <= out[-1].end:
            out[-1].end = max(out[-1].end, cut.end)
        else:
            out.append(Span(cut.start, cut.end, cut.reason))
    return out


def before_cuts(cuts: list[Span], place: int) -> int:
    """Where a character of a text stood before `cuts` (disjoint and in order, of the text as it was) were made."""
    for cut in cuts:
        if cut.start <= place:
            place += cut.end - cut.start
    return place
