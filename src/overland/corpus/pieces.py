"""The pieces a build is cut into, and the two functions that run over them anywhere: read, and finish.

A piece's result is a file in the work folder that appears whole: a build that was killed finds it there and goes on.
Nothing of the corpus depends on where one piece ends and the next begins.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from overland import runs
from overland.corpus import pii
from overland.corpus.clean import Heldout
from overland.corpus.compiled import Packed
from overland.corpus.document import DROPPED, REPLACE, Document, Event, text_hash
from overland.corpus.encode import Encoder
from overland.corpus.gather import authorisations_of, drawn_order, read_entry
from overland.corpus.judging import Means, judge_documents
from overland.corpus.parts import documents_of, read_table, replaced, with_events, write_part, write_table
from overland.corpus.personal_names import names_in
from overland.corpus.personal_vault import open_vault
from overland.corpus.section import CorpusSection
from overland.corpus.shards import DTYPE
from overland.corpus.sources import FileEntry, Source

_MEMORY_PER_BYTE = 24  # of text in a piece: the text in several forms, its documents, what the tokenizer takes


@dataclass(frozen=True)
class ReadPiece:
    """Files of one source that are read together; the result lies at `path`."""

    number: int
    section: CorpusSection
    source: Source
    entries: tuple[FileEntry, ...]
    means: Means
    path: Path


@dataclass(frozen=True)
class FinishPiece:
    """Documents at `decided` whose fate is known, with the texts that they had at `read` where they still have them;
    their rows go to `rows` and their tokens to `tokens`."""

    section: CorpusSection
    heldout: Heldout
    tokenizer: Path
    decided: Path
    read: Path
    rows: Path
    tokens: Path


def piece_bytes(section: CorpusSection, workers: int) -> int:
    """Bytes of files in a piece, so that all workers together stay within the memory setting."""
    return int(min(8e6, max(1e6, section.scale.memory_megabytes * 1e6 / (_MEMORY_PER_BYTE * (workers + 1)))))


def read_pieces(
    section: CorpusSection, sources: list[Source], means: Means, work: Path, n_bytes: int
) -> Iterator[ReadPiece]:
    """All pieces in the drawn order; a file is never split, but a Parquet file is cut between row groups."""
    number = 0
    for source in sources:
        batch: list[FileEntry] = []
        size = 0
        for entry in drawn_order(section, source):
            if batch and (size + entry.size > n_bytes or len(batch) >= 4096):
                yield _read_piece(number, section, source, batch, means, work)
                number, batch, size = number + 1, [], 0
            batch.append(entry)
            size += entry.size
        if batch:
            yield _read_piece(number, section, source, batch, means, work)
            number += 1


def _read_piece(
    number: int, section: CorpusSection, source: Source, batch: list[FileEntry], means: Means, work: Path
) -> ReadPiece:
    # The name says what the piece holds, so that another memory setting does not take it for its own.
    name = text_hash("\0".join(f"{source.name}\0{entry.path}\0{entry.size}\0{entry.groups}" for entry in batch))[:16]
    return ReadPiece(number, section, source, tuple(batch), means, work / "read" / f"{name}.arrow")


def read_piece(piece: ReadPiece) -> int:
    """Read, judge, write; the piece's number."""
    if not piece.path.exists():
        words = authorisations_of(piece.section)
        documents: list[Document] = []
        entries: list[int] = []
        for at, entry in enumerate(piece.entries):
            for document in read_entry(piece.section, words, piece.source, entry):
                documents.append(document)
                entries.append(at)
        judge_documents(piece.section, documents, piece.means)
        write_part(piece.path, documents, entries)
    return piece.number


def finish_piece(piece: FinishPiece) -> None:
    """Take personal data out, tokenise, and say how it went; the rows come last, so that they vouch for the tokens."""
    if piece.rows.exists():
        return
    table = read_table(piece.decided)
    kept = [row for row, decision in enumerate(table["decision"].to_pylist()) if decision != DROPPED]
    documents = kept_documents(table, piece.read, kept)
    deidentify(piece.section, documents)
    ids, lengths = _encoder(piece.tokenizer).encode(Packed.of([document.utf8 for document in documents]))
    sink = io.BytesIO()
    np.save(sink, ids.astype(DTYPE))
    runs.atomic_write(piece.tokens, sink.getvalue())
    columns: dict[str, list[Any]] = {
        "tokens": [0] * len(table),
        "bytes": [0] * len(table),
        "sha256_out": [""] * len(table),
        "split": [""] * len(table),
        "sealed": [b""] * len(table),
        "pii_replaced": [()] * len(table),
    }
    events: list[list[Event]] = [[]] * len(table)
    for row, document, count in zip(kept, documents, lengths.tolist(), strict=True):
        columns["tokens"][row], columns["bytes"][row] = count + 1, len(document.utf8)
        columns["sha256_out"][row], columns["split"][row] = document.sha256, piece.heldout.split(document)
        columns["sealed"][row], columns["pii_replaced"][row] = document.sealed, sorted(document.pii_replaced.items())
        events[row] = document.events
    table = replaced(table, text=[b""] * len(table), **columns)
    write_table(piece.rows, with_events(table, events))


def kept_documents(table: Any, read: Path, rows: list[int]) -> list[Document]:
    """Some documents of a decided table that were kept, with their texts and without what happened to them so far;
    `read`: the part that they come from."""
    import pyarrow as pa

    if not rows:
        return []
    table = table.take(pa.array(rows))
    documents = documents_of(table, history=False)
    same = [at for at, text in enumerate(table["text"].is_null().to_pylist()) if text]
    if same:
        texts = read_table(read, ["text"])["text"].take(table["row"].take(pa.array(same)))
        for at, text in zip(same, texts.to_pylist(), strict=True):
            documents[at].set_text(text, documents[at].sha256)
    return documents


def deidentify(section: CorpusSection, documents: list[Document]) -> None:
    """Take personal data out of kept documents, and seal it where the recipe names a key."""
    if not section.deidentify:
        return
    more = names_in(section.pii_model, documents) if section.pii_model else [[] for _ in documents]
    vault = open_vault(section.pii_key_env) if section.pii_key_env else None
    found = pii.find_in_bytes(Packed.of([d.utf8 for d in documents]), [d.domain for d in documents])
    for document, hits, names in zip(documents, found, more, strict=True):
        if not hits and not names:
            continue
        text = document.text
        hits = pii.in_characters(text, hits)
        done = pii.replace_hits(text, pii.merged(hits, names) if names else hits, document.domain, document.language)
        if not done.counts:
            continue
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(done.counts.items()))
        document.pii_replaced = done.counts
        document.change("personal data", REPLACE, done.text.encode(), "deidentify", said)
        if vault:
            document.sealed = vault.seal(document.id, done.values)


@lru_cache(maxsize=2)
def _encoder(path: Path) -> Encoder:
    import tokenizers

    return Encoder(tokenizers.Tokenizer.from_file(str(path)))
