"""Decontamination: passages of evaluation sets found in training texts, by the same means as repeated spans."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from overland.corpus.compiled import Packed
from overland.corpus.dedup_spans import RepeatedSpan, RepeatedSpans
from overland.corpus.formats import Record, decompressed, json_records, parquet_records
from overland.corpus.page import page_text
from overland.corpus.section import DecontaminationSection
from overland.corpus.sources import PAGES, RECORDS, FileEntry, Source, named_source, suffix_of
from overland.errors import UsageError

WINDOW = 4
LARGEST_ITEM = 4_000_000


@dataclass(frozen=True)
class Contamination:
    """What a text holds of evaluation items, and the share of its bytes that they make up."""

    spans: tuple[RepeatedSpan, ...]
    share: float


class Decontaminator:
    """Holds evaluation items (id -> text); `check` tells which texts hold them, nearly word for word.

    A passage counts from `min_words` words on, and an item shorter than that where it occurs whole; items of under
    five words cannot be looked for and are listed in `too_short`.
    """

    def __init__(self, items: Mapping[str, str], min_words: int = 13, identity: float = 0.8) -> None:
        if not items:
            raise UsageError("decontamination: no evaluation items; give at least one")
        self.index = RepeatedSpans(min_words, identity, WINDOW)
        texts = Packed.of(list(items.values()))
        # Items may repeat each other: an unreachable min_words keeps every one of them whole in the index.
        self.index.add(texts, list(items), min_words=2**31 - 1)
        self.too_short = [name for name, text in items.items() if len(text.split()) < 5]

    def check(self, texts: Packed) -> list[Contamination]:
        """What each text holds of the items; spans name the item and the place in it."""
        out = []
        for i, spans in enumerate(self.index.find(texts)):
            size = int(texts.offsets[i + 1] - texts.offsets[i])
            out.append(Contamination(spans, sum(span.end - span.start for span in spans) / max(1, size)))
        return out

    def save(self, path: Path) -> None:
        """Write the items' words to a file, for workers to load."""
        self.index.save(path)

    @classmethod
    def load(cls, path: Path, min_words: int = 13, identity: float = 0.8) -> Decontaminator:
        """What `save` wrote; nothing is known of items that are too short."""
        made = cls.__new__(cls)
        made.index, made.too_short = RepeatedSpans.load(path, min_words, identity, WINDOW), []
        return made


def read_items(section: DecontaminationSection) -> dict[str, str]:
    """The items of a recipe's evaluation sets, by set, file, record and field.

    Raises UsageError where a set is missing, cannot be read whole, or has none of the fields: an evaluation set that is
    silently empty would keep nothing out.
    """
    items: dict[str, str] = {}
    for place in section.sets:
        source = named_source(place, "corpus.decontamination.sets")
        before = len(items)
        for entry in source.files:
            for name, text in _items_of(source, entry, section.fields):
                items[f"{place.rstrip('/').rsplit('/', 1)[-1]}/{name}"] = text
        if len(items) == before:
            raise UsageError(
                f"corpus.decontamination.sets: {place} has no item; its records need one of the fields "
                f"{', '.join(section.fields)} (corpus.decontamination.fields)"
            )
    return {name.replace("\n", " "): text for name, text in items.items()}


def _items_of(source: Source, entry: FileEntry, fields: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    suffix = suffix_of(entry.path)
    if suffix not in RECORDS:
        with source.open(entry.path) as file:
            text = file.read().decode("utf-8", "replace")
        yield entry.path, page_text(text) if suffix in PAGES else text
        return
    if suffix.startswith(".warc"):
        raise UsageError(
            f"corpus.decontamination.sets: {entry.path} is a web archive; give JSON lines, Parquet or text"
        )
    for field in fields:
        with source.open(entry.path) as file:
            found = (
                parquet_records(file, entry.groups, field, "id", ())
                if suffix == ".parquet"
                else json_records(decompressed(file, entry.path), LARGEST_ITEM, field, "id")
            )
            for record in found:
                if isinstance(record, Record):
                    yield f"{entry.path}#{record.name}.{field}", record.raw.decode("utf-8", "replace")
                elif not record.reason.startswith("no text"):
                    raise UsageError(
                        f"corpus.decontamination.sets: {entry.path} #{record.name}: {record.reason}; an evaluation "
                        "set must be whole"
                    )


def digest_of(items: Mapping[str, str]) -> str:
    """SHA-256 over items: what makes two evaluation sets the same."""
    digest = hashlib.sha256()
    for name, text in items.items():
        digest.update(hashlib.sha256(f"{name}\0{text}".encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()
