"""Which documents come in: files drawn by the seed until the budget is full, through the licence gate and the rules."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from overland.corpus.dedup import normalised_hash
from overland.corpus.document import Document
from overland.corpus.quality import check
from overland.corpus.reading import read_documents
from overland.corpus.section import CorpusSection
from overland.corpus.sources import Source, stdlib_source, text_sources
from overland.errors import UsageError
from overland.licences import Authorisation, decide


def open_sources(section: CorpusSection) -> list[Source]:
    """All sources with their files listed. Raises UsageError where one is missing or holds nothing to read."""
    sources = list(text_sources(section.text, section.text_licence))
    if section.stdlib:
        sources.append(stdlib_source())
    if not sources:
        raise UsageError("corpus: nothing to read; give --text DIR or set corpus.stdlib=true")
    return sources


def authorisations_of(section: CorpusSection) -> list[Authorisation]:
    """The recipe's words, and the user's own for the folders under `text`."""
    words = [word.record() for word in section.authorisations]
    if section.text_authorised:
        words.append(Authorisation("*", "the user", section.text_authorised, sources=("text:*",)))
    return words


def draw(seed: int, *parts: str) -> bytes:
    """A number that belongs to these names under this seed: orders and splits that no order of reading can change."""
    return hashlib.sha256("\0".join((str(seed), *parts)).encode("utf-8", "surrogateescape")).digest()


def select_documents(section: CorpusSection, sources: list[Source], bar: Any) -> list[Document]:
    """Read files in a drawn order until the budget is full; licence gate, rules and exact duplicates on the way.

    The order of drawing is also the order of survival: of two equal documents the one drawn first stays, the user's own
    text before the standard library.
    """
    words = authorisations_of(section)
    budget = int(section.max_megabytes * 1e6)
    documents: list[Document] = []
    seen: dict[str, str] = {}
    used = 0
    texts = [source for source in sources if not source.is_stdlib]
    for source in sources:
        if source.is_stdlib or not section.stdlib:
            limit = budget
        else:
            limit = int(budget * section.text_share)
        if source in texts and len(texts) > 1:
            # Equal parts for several folders; what one leaves is offered to the next.
            limit = int(limit * (texts.index(source) + 1) / len(texts))
        found: list[Document] = []
        full = used >= limit
        for entry in sorted(source.files, key=lambda file: draw(section.seed, source.name, file.path)):
            if full:
                unread = Document(
                    source.name, entry.path, "code" if entry.path.endswith(".py") else "prose", "", "", ""
                )
                unread.drop("budget: corpus.max_megabytes is full")
                found.append(unread)
                continue
            for document in read_documents(source, entry, int(section.max_file_megabytes * 1e6)):
                found.append(document)
                if document.kept:
                    _admit(section, words, source, document, seen)
                if document.kept:
                    size = len(document.text.encode())
                    if size > limit - used:
                        document.drop("budget: larger than what is left of corpus.max_megabytes")
                        # A huge file must not end the drawing early; a nearly full budget must not read on for ever.
                        full = used >= 0.9 * limit
                        continue
                    used += size
                    bar.advance(size)
        _refuse_useless(section, source, found)
        documents += found
    return documents


def _admit(
    section: CorpusSection, words: list[Authorisation], source: Source, document: Document, seen: dict[str, str]
) -> None:
    verdict = decide(document.licence or None, section.licences, words, source=source.name)
    if not verdict.allowed:
        document.drop(f"licence: {verdict.reason}")
        return
    document.licence = verdict.licence_used
    evidence = document.licence_evidence or "none"
    document.licence_evidence = f"{evidence}; {verdict.reason}" if verdict.authorisation else evidence
    broken = check(document.text, document.domain, section.prose, section.code)
    if broken:
        document.drop(f"quality: {document.domain}.{broken}")
        return
    first = seen.setdefault(normalised_hash(document.text), document.id)
    if first != document.id:
        document.drop(f"exact duplicate of {first}")


def _refuse_useless(section: CorpusSection, source: Source, found: list[Document]) -> None:
    """A folder of the user's of which nothing can be used is a mistake to name, not a small corpus."""
    if source.is_stdlib or any(d.kept or d.reason.startswith("exact duplicate") for d in found):
        return
    reasons = Counter(document.reason for document in found)
    why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
    skipped = f"; {source.describe_skipped()}" if source.skipped else ""
    hint = "Change the folder or the rules"
    if any(document.reason.startswith(("licence", "conflicting")) for document in found):
        hint = (
            "Put a LICENSE file or SPDX lines there, state it with --set corpus.text_licence=CC-BY-4.0, "
            "or take the responsibility with --set corpus.text_authorised='I wrote these notes'"
        )
    raise UsageError(
        f"corpus.text: {source.root}: none of its {len(found)} documents can be used under licence profile "
        f"'{section.licences}' ({why}{skipped}). {hint}"
    )
