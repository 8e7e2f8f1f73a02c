"""What is kept of what came in, decided in one place in the drawn order: near duplicates and repeated paragraphs.

Also the held-out split, by hash of the file that a document came from: a module's docstrings and its source are one
text, so they go together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overland.corpus.dedup import NearDuplicates, RepeatedParagraphs
from overland.corpus.document import PASS, TRIM, TRIMMED, Document, Span
from overland.corpus.gather import draw
from overland.corpus.quality import check
from overland.corpus.section import CorpusSection


class Duplicates:
    """Feed documents in the order of survival; of two alike, the first stays."""

    def __init__(self, section: CorpusSection) -> None:
        self.section = section
        self.near = NearDuplicates(section.near_duplicate)
        self.paragraphs = RepeatedParagraphs(section.paragraph_words)

    def decide(self, document: Document) -> None:
        """Drop a near copy; cut what earlier documents already said, and drop what is then too little."""
        section = self.section
        twin = self.near.copy_of(document.id, document.text)
        if twin:
            document.drop(
                f"near duplicate of {twin[0]} (Jaccard {twin[1]:.2f})",
                "near duplicate",
                "near_duplicate",
                twin[1],
                section.near_duplicate,
            )
            return
        text, cuts = self.paragraphs.cut(document.id, document.text, document.domain)
        if not cuts:
            document.note("duplicates", PASS, "near_duplicate", "", section.near_duplicate)
            return
        broken = check(text, document.domain, section.prose, section.code)
        if broken:
            reason = f"repeated paragraphs: too little is left ({document.domain}.{broken})"
            document.drop(reason, "repeated paragraphs", broken)
            return
        document.spans_removed = [Span(start, end, f"repeats {first}") for start, end, first in cuts]
        document.decision, document.reason = TRIMMED, "repeated paragraphs"
        removed = sum(end - start for start, end, _ in cuts)
        document.change("repeated paragraphs", TRIM, text, "paragraph_words", removed, section.paragraph_words)


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
