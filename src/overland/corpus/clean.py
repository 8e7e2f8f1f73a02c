"""What is kept of what came in, decided in one place in the drawn order: near duplicates and repeated paragraphs.

Also the held-out split, by hash of the file that a document came from: a module's docstrings and its source are one
text, so they go together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import Packed, available
from overland.corpus.dedup import NearDuplicates
from overland.corpus.dedup_cut import cut_spans
from overland.corpus.dedup_documents import NearDocuments
from overland.corpus.dedup_exact import ExactSpan, RepeatedSubstrings, RepeatedUnits, whole_characters
from overland.corpus.dedup_paragraphs import RepeatedParagraphs
from overland.corpus.dedup_spans import RepeatedSpan, RepeatedSpans
from overland.corpus.dedup_words import Words
from overland.corpus.document import PASS, TRIMMED, Document, Span
from overland.corpus.gather import draw
from overland.corpus.quality import profiles_of
from overland.corpus.section import CorpusSection
from overland.corpus.trimming import trim

_SHARE = 0.25  # of the recipe's memory for the indexes; texts on their way have the rest
_CHECK_EVERY = 1_000_000  # bytes; looking them up touches a page of an index every few bytes
_log = logging.getLogger("overland.corpus")


class Duplicates:
    """Feed documents in the order of survival; of two alike, the first stays.

    What a document that is dropped half-way had added is forgotten, so that nothing loses its last copy to it. Indexes
    that outgrow their share of the recipe's memory go on in files in `folder`.
    """

    def __init__(self, section: CorpusSection, folder: Path | None = None) -> None:
        self.section, self.folder = section, folder
        self.in_memory = section.scale.memory_megabytes * 1e6 * _SHARE
        self.spilled = False
        self._unchecked = 0
        self.profiles = profiles_of(section)
        self.compiled = available()
        if self.compiled:
            self._words = Words()
        self.paragraphs = RepeatedParagraphs(section.paragraph_words)
        self.lines = RepeatedUnits(False, section.line_words) if section.line_words and self.compiled else None
        self.substrings = (
            RepeatedSubstrings(section.substring_bytes) if section.substring_bytes and self.compiled else None
        )
        # One index a domain: a module's docstrings are a prose text of their own beside its source.
        self.near: dict[str, NearDocuments | NearDuplicates] = {}
        self.spans: dict[str, RepeatedSpans] = {}
        if not self.compiled:
            _log.warning("no C compiler: near duplicates are found slowly, repeated spans are left; apt install gcc")

    def decide(self, document: Document) -> None:
        """Drop a near copy; cut what earlier documents already said, and drop what is then too little."""
        self._unchecked += len(document.utf8)
        self._decide(document)
        if self.folder and self._unchecked >= _CHECK_EVERY:
            self._unchecked = 0
            self._keep_memory(self.folder)

    def _keep_memory(self, folder: Path) -> None:
        near = [index for index in self.near.values() if not isinstance(index, NearDuplicates)]
        indexes: list[NearDocuments | RepeatedSpans | RepeatedParagraphs] = [
            *near, *self.spans.values(), self.paragraphs,
        ]  # fmt: skip
        self.spilled = self.spilled or sum(index.n_bytes for index in indexes) > self.in_memory
        if self.spilled:
            for index in indexes:
                index.spill(folder)

    def _decide(self, document: Document) -> None:
        section = self.section
        asked: list[_Forgets] = []  # the indexes that know the document so far
        twin = self._twin(document, asked)
        if twin:
            document.drop(
                f"near duplicate of {twin[0]} (Jaccard {twin[1]:.2f})",
                "near duplicate",
                "near_duplicate",
                twin[1],
                section.near_duplicate,
            )
            return
        stages = (self._cut_paragraphs, self._cut_lines, self._cut_substrings, self._cut_spans)
        if not all(stage(document, asked) for stage in stages):
            for index in asked:
                index.forget_last()
        elif document.decision != TRIMMED:
            document.note("duplicates", PASS, "near_duplicate", "", section.near_duplicate)

    def _twin(self, document: Document, asked: list[_Forgets]) -> tuple[str, float] | None:
        threshold = self.section.near_duplicate
        if document.domain not in self.near:
            self.near[document.domain] = NearDocuments(threshold) if self.compiled else NearDuplicates(threshold)
        near = self.near[document.domain]
        before = len(near)
        if isinstance(near, NearDuplicates):
            found = near.copy_of(document.id, document.text)
        else:
            copy = near.take(self._words.of(document.utf8), document.id)
            found = (copy.id, copy.similarity) if copy else None
        if len(near) > before:
            asked.append(near)
        return found

    def _cut_paragraphs(self, document: Document, asked: list[_Forgets]) -> bool:
        utf8, removed = self.paragraphs.cut(document.id, document.utf8, document.domain)
        asked.append(self.paragraphs)
        cuts = [Span(start, end, f"repeats {first}") for start, end, first in removed]
        return not cuts or self._trim(document, utf8, cuts, "repeated paragraphs", "paragraph_words")

    def _cut_lines(self, document: Document, asked: list[_Forgets]) -> bool:
        if self.lines is None:
            return True
        (found,) = self.lines.add(Packed.of([document.utf8]), [document.id])
        asked.append(self.lines)
        return self._cut_exact(document, found, "repeated lines", "line_words")

    def _cut_substrings(self, document: Document, asked: list[_Forgets]) -> bool:
        if self.substrings is None:
            return True
        (found,) = self.substrings.add(Packed.of([document.utf8]), [document.id])
        asked.append(self.substrings)
        return self._cut_exact(document, found, "repeated substrings", "substring_bytes")

    def _cut_exact(self, document: Document, found: Sequence[ExactSpan], stage: str, rule: str) -> bool:
        spans = []
        for span in found:
            start, end = whole_characters(document.utf8, span.start, span.end)
            spans.append(RepeatedSpan(start, end, span.source, span.source_start, span.source_end, 0, 1.0))
        return self._cut(document, spans, stage, rule, exactly=True)

    def _cut_spans(self, document: Document, asked: list[_Forgets]) -> bool:
        section = self.section
        if not self.compiled or not section.span_words:
            return True
        # A text that will be dropped for what is cut from it must not be the source of later cuts.
        least = section.prose.min_words if document.domain == "prose" else 0
        index = self._spans_of(document.domain)
        found = index.take(self._words.of(document.utf8), document.id, min_left=least)
        if found.dropped:
            document.drop(f"repeated spans: under {least} words are left", "repeated spans", "min_words", 0, least)
            return False
        asked.append(index)
        return self._cut(document, found.spans, "repeated spans", "span_words")

    def _spans_of(self, domain: str) -> RepeatedSpans:
        if domain not in self.spans:
            self.spans[domain] = RepeatedSpans(max(10, self.section.span_words), self.section.span_identity)
        return self.spans[domain]

    def _cut(
        self, document: Document, spans: Sequence[RepeatedSpan], stage: str, rule: str, *, exactly: bool = False
    ) -> bool:
        utf8, parts = cut_spans(document.utf8, spans, document.domain, exactly=exactly)
        cuts = [Span(p.start, p.end, f"repeats {p.span.source} from byte {p.span.source_start}") for p in parts]
        return not cuts or self._trim(document, utf8, cuts, stage, rule)

    def _trim(self, document: Document, utf8: bytes, cuts: list[Span], stage: str, rule: str) -> bool:
        return trim(self.profiles, document, utf8, cuts, stage, rule, getattr(self.section, rule))


class _Forgets(Protocol):
    def forget_last(self) -> None: ...


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
