"""What is kept of what came in: near duplicates, repeated paragraphs, personal data, and the held-out split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overland.corpus import pii
from overland.corpus.dedup import NearDuplicates, RepeatedParagraphs
from overland.corpus.document import TRIMMED, Document, Span
from overland.corpus.gather import draw
from overland.corpus.quality import check
from overland.corpus.section import CorpusSection


def clean(section: CorpusSection, documents: list[Document], progress: Callable[..., Any]) -> None:
    """Decide over every document in turn; of two alike, the one drawn first stays."""
    kept = [document for document in documents if document.kept]
    near = NearDuplicates(section.near_duplicate)
    paragraphs = RepeatedParagraphs(section.paragraph_words)
    with progress("corpus: clean", len(kept), "document") as bar:
        for document in kept:
            _clean_one(section, document, near, paragraphs)
            bar.advance()


def _clean_one(
    section: CorpusSection, document: Document, near: NearDuplicates, paragraphs: RepeatedParagraphs
) -> None:
    twin = near.copy_of(document.id, document.text)
    if twin:
        document.drop(f"near duplicate of {twin[0]} (Jaccard {twin[1]:.2f})")
        return
    text, cuts = paragraphs.cut(document.id, document.text, document.domain)
    if cuts:
        broken = check(text, document.domain, section.prose, section.code)
        if broken:
            document.drop(f"repeated paragraphs: too little is left ({document.domain}.{broken})")
            return
        document.spans_removed = [Span(start, end, f"repeats {first}") for start, end, first in cuts]
        document.decision, document.reason, document.text = TRIMMED, "repeated paragraphs", text
    if section.deidentify:
        document.text, document.pii_replaced = pii.replace(document.text, document.domain, document.language)


def split_documents(section: CorpusSection, kept: list[Document]) -> None:
    """Hold files out by hash: a module's docstrings and its source are one text, so they go together."""
    groups = {document.group: draw(section.seed, "heldout", document.group) for document in kept}
    limit = int(section.heldout * 2**64)
    out = {group for group, draw in groups.items() if int.from_bytes(draw[:8], "big") < limit}
    in_order = sorted(groups, key=groups.__getitem__)
    if section.heldout > 0 and not out and len(groups) > 1:
        out = {in_order[0]}
    if len(out) == len(groups):
        out -= {in_order[-1]}
    for document in kept:
        document.split = "heldout" if document.group in out else "train"
