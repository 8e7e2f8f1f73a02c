"""Which documents come in: files drawn by the seed until the budget is full, through the licence gate and the rules.

What can be said of a document alone (`judge`) runs wherever it is read; what depends on those before it (`Admission`)
runs in one place, in the drawn order, which is also the order of survival: of two equal documents the one drawn first
stays, the user's own text before the standard library.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from overland.corpus.document import PASS, Document
from overland.corpus.judging import Means, judge_documents, open_means
from overland.corpus.reading import read_documents
from overland.corpus.section import CorpusSection
from overland.corpus.sources import CODE, FileEntry, Source, declared_source, stdlib_source, suffix_of, text_sources
from overland.errors import UsageError
from overland.licences import Authorisation, decide


def open_sources(section: CorpusSection) -> list[Source]:
    """All sources with their files listed. Raises UsageError where one is missing or holds nothing to read."""
    sources = [declared_source(fields) for fields in section.source]
    sources += text_sources(section.text, section.text_licence)
    if section.stdlib:
        sources.append(stdlib_source())
    if not sources:
        raise UsageError("corpus: nothing to read; give --text DIR or set corpus.stdlib=true")
    twice = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
    if twice:
        raise UsageError(f"corpus.source: two sources are called {twice[0]}; names tell them apart in the lineage")
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


def drawn_order(section: CorpusSection, source: Source) -> list[FileEntry]:
    """A source's files in the order in which they are drawn."""
    return sorted(source.files, key=lambda file: (draw(section.seed, source.name, file.path), file.groups or (0, 0)))


def read_entry(
    section: CorpusSection, words: list[Authorisation], source: Source, entry: FileEntry
) -> Iterator[Document]:
    """The documents of one file, each with its licence decided."""
    for document in read_documents(source, entry, int(section.max_file_megabytes * 1e6)):
        if document.kept:
            _gate(section, words, source, document)
        yield document


def _gate(section: CorpusSection, words: list[Authorisation], source: Source, document: Document) -> None:
    verdict = decide(
        document.licence or None, section.licences, words, source=source.name, uses=frozenset(section.uses)
    )
    if not verdict.allowed:
        said = document.licence or document.licence_evidence
        document.drop(f"licence: {verdict.reason}", "licence", section.licences, said)
        return
    document.note("licence", PASS, section.licences, document.licence, verdict.licence_used, verdict.reason)
    document.licence = verdict.licence_used
    evidence = document.licence_evidence or "none"
    document.licence_evidence = f"{evidence}; {verdict.reason}" if verdict.authorisation else evidence


@dataclass
class Admission:
    """Exact duplicates, duplicate names and the budget, in the drawn order. One object a build."""

    section: CorpusSection
    sources: list[Source]
    used: int = 0
    seen: dict[bytes, str] = field(default_factory=dict)
    """SHA-256 (its first half) of every text that came in, and its document."""
    _names: set[bytes] = field(default_factory=set)
    _full: set[str] = field(default_factory=set)
    _reasons: dict[str, Counter[str]] = field(default_factory=dict)
    _useful: set[str] = field(default_factory=set)

    def limit(self, source: Source) -> int:
        """Bytes up to which this source may fill the budget."""
        budget = int(self.section.max_megabytes * 1e6)
        limit = budget if source.is_stdlib or not self.section.stdlib else int(budget * self.section.text_share)
        texts = [one for one in self.sources if not one.is_stdlib]
        if source in texts and len(texts) > 1:
            # Equal parts for several sources; what one leaves is offered to the next.
            limit = int(limit * (texts.index(source) + 1) / len(texts))
        return limit

    def full(self, source: Source) -> bool:
        """Whether nothing more is read from a source. Once full, always full."""
        return source.name in self._full or self.used >= self.limit(source)

    def unread(self, source: Source, entry: FileEntry) -> Document:
        """The row of a file that the budget left out."""
        suffix = suffix_of(entry.path)
        place = entry.path if entry.groups is None else f"{entry.path}#rows of groups {entry.groups[0]}+"
        document = Document(source.name, place, "code" if suffix in CODE else "prose", CODE.get(suffix, ""), b"", "")
        document.drop("budget: corpus.max_megabytes is full", "budget", "max_megabytes")
        self._count(source, document)
        return document

    def admit(self, source: Source, document: Document) -> int:
        """Let a document in or drop it; the bytes that it takes of the budget."""
        size = 0
        if document.kept:
            size = self._admit(source, document)
        self._count(source, document)
        return size

    def _admit(self, source: Source, document: Document) -> int:
        name = hashlib.blake2b(
            f"{document.group}\0{document.domain}".encode("utf-8", "surrogateescape"), digest_size=16
        ).digest()
        if name in self._names:
            document.drop(f"duplicate id: {document.path} was read before", "duplicate id", "id", document.path)
            return 0
        self._names.add(name)
        key = bytes.fromhex(document.sha256[:32])
        first = self.seen.get(key)
        if first is not None:
            document.drop(f"exact duplicate of {first}", "exact duplicate", "exact", first)
            return 0
        limit = self.limit(source)
        size = len(document.utf8)
        if size > limit - self.used:
            document.drop(
                "budget: larger than what is left of corpus.max_megabytes", "budget", "max_megabytes", size,
                limit - self.used,
            )  # fmt: skip
            # A huge file must not end the drawing early; a nearly full budget must not read on for ever.
            if self.used >= 0.9 * limit:
                self._full.add(source.name)
            return 0
        self.seen[key] = document.id
        self.used += size
        return size

    def _count(self, source: Source, document: Document) -> None:
        if document.kept or document.reason.startswith("exact duplicate"):
            self._useful.add(source.name)
        else:
            self._reasons.setdefault(source.name, Counter())[document.reason] += 1

    def refuse_useless(self, source: Source) -> None:
        """A source of the user's of which nothing can be used is a mistake to name, not a small corpus."""
        if source.is_stdlib or source.name in self._useful:
            return
        reasons = self._reasons.get(source.name, Counter())
        why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        skipped = f"; {source.describe_skipped()}" if source.skipped else ""
        hint = "Change the folder or the rules"
        if any(reason.startswith(("licence", "conflicting")) for reason in reasons):
            hint = (
                "Put a LICENSE file or SPDX lines there, state it with --set corpus.text_licence=CC-BY-4.0, "
                "or take the responsibility with --set corpus.text_authorised='I wrote these notes'"
            )
        raise UsageError(
            f"corpus.text: {source.root}: none of its {sum(reasons.values())} documents can be used under licence "
            f"profile '{self.section.licences}' ({why}{skipped}). {hint}"
        )


def select_documents(section: CorpusSection, sources: list[Source], bar: Any) -> list[Document]:
    """Everything that comes in, read here and held in memory: to look before anything is written."""
    words, means = authorisations_of(section), open_means(section)
    admission = Admission(section, sources)
    documents: list[Document] = []
    for source in sources:
        for entry in drawn_order(section, source):
            if admission.full(source):
                documents.append(admission.unread(source, entry))
                continue
            read = list(read_entry(section, words, source, entry))
            judge_documents(section, read, Means(classifier=means.classifier))
            for document in read:
                bar.advance(admission.admit(source, document))
            documents += read
        admission.refuse_useless(source)
    return documents
