"""What earlier builds kept, as a folder `duplicates` in their corpus: hashes by which a later build knows repeats.

`index.json` lists the files with their sha256; its own is what the later build's recipe is held to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overland import runs
from overland.corpus.clean import Duplicates
from overland.corpus.compiled import library
from overland.corpus.dedup_documents import NearDocuments
from overland.corpus.dedup_exact import EarlierSubstrings, RepeatedUnits
from overland.corpus.dedup_index import read_index, write_index
from overland.corpus.dedup_paragraphs import RepeatedParagraphs
from overland.corpus.dedup_spans import RepeatedSpans
from overland.corpus.section import CorpusSection
from overland.errors import BrokenFileError, OverlandError, UsageError

FOLDER = "duplicates"
FORMAT = 1
_DOCUMENTS = "exact documents"


class Earlier:
    """An earlier build's index: `sha256` names it, `fill` takes what it knows over."""

    def __init__(self, place: str) -> None:
        given = Path(place).expanduser()
        self.folder = given if (given / "index.json").is_file() and given.name == FOLDER else given / FOLDER
        if not (self.folder / "index.json").is_file():
            raise UsageError(
                f"corpus.index.against: {place} has no folder '{FOLDER}'; build that corpus with "
                "--set corpus.index.save=true"
            )
        self.index: dict[str, Any] = runs.read_json(self.folder / "index.json")
        if self.index.get("format") != FORMAT:
            raise UsageError(
                f"corpus.index.against: {self.folder} has format {self.index.get('format')}; build it again"
            )
        self.sha256 = runs.sha256_file(self.folder / "index.json")
        for name, digest in self.index["files"].items():
            if runs.sha256_file(self.folder / name) != digest:
                raise BrokenFileError(f"{self.folder / name}: its sha256 is not the one in index.json; build it again")

    def fill(self, section: CorpusSection, seen: dict[bytes, str], duplicates: Duplicates) -> None:
        """Let a build's indexes begin with what this one holds. Raises UsageError where the settings do not fit."""
        ids, arrays = read_index(self.folder / "documents.index", _DOCUMENTS, {})
        seen.update({row.tobytes(): name for row, name in zip(arrays["digest"], ids, strict=True)})
        duplicates.paragraphs = RepeatedParagraphs.load(self.folder / "paragraphs.index", section.paragraph_words)
        if duplicates.lines is not None and (self.folder / "lines.index").exists():
            duplicates.lines = RepeatedUnits.load(self.folder / "lines.index", False, section.line_words)
        if duplicates.substrings is not None and (self.folder / "substrings.index").exists():
            place = self.folder / "substrings.index"
            duplicates.substrings.earlier = EarlierSubstrings.load(place, section.substring_bytes)
        for number, domain in enumerate(self.index["near"]):
            place = self.folder / f"near-{number}.index"
            duplicates.near[domain] = NearDocuments.load(place, section.near_duplicate)
        if section.span_words:
            for number, domain in enumerate(self.index["spans"]):
                place = self.folder / f"spans-{number}.index"
                words = max(10, section.span_words)
                duplicates.spans[domain] = RepeatedSpans.load(place, words, section.span_identity)


def open_earlier(section: CorpusSection) -> Earlier | None:
    """The index that a recipe names. Raises UsageError where it cannot be used, or none can be kept here."""
    asked = section.index
    if asked.against or asked.save:
        try:
            library()
        except OverlandError as error:
            raise UsageError(f"corpus.index needs a C compiler: {error}") from error
    return Earlier(asked.against) if asked.against else None


def save_index(folder: Path, seen: dict[bytes, str], duplicates: Duplicates) -> None:
    """Write `duplicates/` with what a build has seen."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(seen.items())
    digests = np.frombuffer(b"".join(key for key, _ in rows), dtype="u1").reshape(-1, 16)
    write_index(folder / "documents.index", _DOCUMENTS, {}, [name for _, name in rows], {"digest": digests})
    duplicates.paragraphs.save(folder / "paragraphs.index")
    if duplicates.lines is not None:
        duplicates.lines.save(folder / "lines.index")
    if duplicates.substrings is not None:
        duplicates.substrings.save(folder / "substrings.index")
    near = {name: index for name, index in sorted(duplicates.near.items()) if isinstance(index, NearDocuments)}
    spans = dict(sorted(duplicates.spans.items()))
    for number, one in enumerate(near.values()):
        one.save(folder / f"near-{number}.index")
    for number, other in enumerate(spans.values()):
        other.save(folder / f"spans-{number}.index")
    files = {path.name: runs.sha256_file(path) for path in sorted(folder.glob("*.index"))}
    runs.write_json(folder / "index.json", {"format": FORMAT, "near": list(near), "spans": list(spans), "files": files})
