"""What is kept of what came in, decided in one place in the drawn order: near duplicates and repeated paragraphs.

Also the held-out split, by hash of the file that a document came from: a module's docstrings and its source are one
text, so they go together.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import Packed, available
from overland.corpus.dedup import NearDuplicates, RepeatedParagraphs
from overland.corpus.dedup_cut import cut_spans
from overland.corpus.dedup_documents import NearDocuments
from overland.corpus.dedup_spans import RepeatedSpans
from overland.corpus.document import PASS, TRIM, TRIMMED, Document, Span
from overland.corpus.gather import draw
from overland.corpus.quality import check
from overland.corpus.section import CorpusSection

_log = logging.getLogger("overland.corpus")


class Duplicates:
    """Feed documents in the order of survival; of two alike, the first stays."""

    def __init__(self, section: CorpusSection) -> None:
        self.section = section
        self.paragraphs = RepeatedParagraphs(section.paragraph_words)
        # One index a domain: a module's docstrings are a prose text of their own beside its source.
        self.near: dict[str, NearDocuments | NearDuplicates] = {}
        self.spans: dict[str, RepeatedSpans] = {}
        self.compiled = available()
        if not self.compiled:
            _log.warning("no C compiler: near duplicates are found slowly, repeated spans are left; apt install gcc")

    def decide(self, document: Document) -> None:
        """Drop a near copy; cut what earlier documents already said, and drop what is then too little."""
        section = self.section
        twin = self._twin(document)
        if twin:
            document.drop(
                f"near duplicate of {twin[0]} (Jaccard {twin[1]:.2f})",
                "near duplicate",
                "near_duplicate",
                twin[1],
                section.near_duplicate,
            )
            return
        text, removed = self.paragraphs.cut(document.id, document.text, document.domain)
        if removed:
            cuts = [Span(start, end, f"repeats {first}") for start, end, first in removed]
            if not self._trim(document, text, cuts, "repeated paragraphs", "paragraph_words", section.paragraph_words):
                return
        if self.compiled and section.span_words:
            # A text that will be dropped for what is cut from it must not be the source of later cuts.
            least = section.prose.min_words if document.domain == "prose" else 0
            (found,) = self._spans_of(document.domain).add(Packed.of([document.text]), [document.id], min_left=least)
            if found.dropped:
                document.drop(f"repeated spans: under {least} words are left", "repeated spans", "min_words", 0, least)
                return
            text, parts = cut_spans(document.text, found.spans, document.domain)
            if parts:
                cuts = [
                    Span(
                        before_cuts(document.spans_removed, p.start),
                        before_cuts(document.spans_removed, p.end - 1) + 1,
                        f"repeats {p.span.source} from byte {p.span.source_start}",
                    )
                    for p in parts
                ]
                if not self._trim(document, text, cuts, "repeated spans", "span_words", section.span_words):
                    return
        if document.decision != TRIMMED:
            document.note("duplicates", PASS, "near_duplicate", "", section.near_duplicate)

    def _spans_of(self, domain: str) -> RepeatedSpans:
        if domain not in self.spans:
            self.spans[domain] = RepeatedSpans(max(10, self.section.span_words), self.section.span_identity)
        return self.spans[domain]

    def _twin(self, document: Document) -> tuple[str, float] | None:
        threshold = self.section.near_duplicate
        if document.domain not in self.near:
            self.near[document.domain] = NearDocuments(threshold) if self.compiled else NearDuplicates(threshold)
        near = self.near[document.domain]
        if isinstance(near, NearDuplicates):
            return near.copy_of(document.id, document.text)
        (copy,) = near.add(Packed.of([document.text]), [document.id])
        return (copy.id, copy.similarity) if copy else None

    def _trim(self, document: Document, text: str, cuts: list[Span], stage: str, rule: str, limit: float) -> bool:
        """Cut, and say so; False where the document is dropped because too little would be left of it."""
        section = self.section
        broken = check(text, document.domain, section.prose, section.code)
        if broken:
            document.drop(f"{stage}: too little is left ({document.domain}.{broken})", stage, broken)
            return False
        document.spans_removed = [*document.spans_removed, *cuts]
        document.decision, document.reason = TRIMMED, stage
        document.change(stage, TRIM, text, rule, sum(cut.end - cut.start for cut in cuts), limit)
        return True


def before_cuts(cuts: list[Span], place: int) -> int:
    """Where a character of a text stood before `cuts` (in order, of the text as it was) were made."""
    for cut in cuts:
        if cut.start <= place:
            place += cut.end - cut.start
    return place


@dataclass(frozen=True)
class Heldout:
    """Which groups are held out: those drawn below `limit`, `always` too, `never` not (-1: none such)."""

    seed: int
    limit: int
    always: int = -1
    never: int = -1

    def split(self, document: Document) -> str:
        """The split of a document."""
        drawn = group_draw(self.seed, document)
        out = (drawn < self.limit or drawn == self.always) and drawn != self.never
        return "heldout" if out else "train"


def group_draw(seed: int, document: Document) -> int:
    """The number, below 2^64, that a document's group draws for the held-out split."""
    return int.from_bytes(draw(seed, "heldout", document.group)[:8], "big")


def heldout_rule(section: CorpusSection, draws: NDArray[np.uint64]) -> Heldout:
    """The rule for the groups' draws [documents]: never all of them, and at least one where one can be spared."""
    limit = int(section.heldout * 2**64)
    least, most = int(draws.min()), int(draws.max())
    if section.heldout > 0 and least >= limit and least != most:
        return Heldout(section.seed, limit, always=least)
    if most < limit:
        return Heldout(section.seed, limit, never=most)
    return Heldout(section.seed, limit)
