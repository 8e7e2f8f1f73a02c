"""Raw text to token shards: read, licence gate, rules, duplicates, personal data, tokenizer, shards, lineage.

    sources --read (anywhere)--> judged parts --decide (here, in order)--> decided parts
            --finish (anywhere)--> rows and tokens --pack (here)--> corpus folder

All that can be refused is refused before anything is written. Parts lie in a hidden work folder beside `out`; a build
that was stopped or killed is continued by the same command and ends in the same bytes. The corpus itself is written
into another hidden folder, which takes its name when complete.
"""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overland import runs
from overland.corpus.clean import Duplicates, Heldout, heldout_rule
from overland.corpus.document import Document
from overland.corpus.earlier import FOLDER, Earlier, open_earlier, save_index
from overland.corpus.gather import Admission, open_sources
from overland.corpus.judging import OpenedMeans, open_means
from overland.corpus.parts import decided_table, documents_of, read_table, write_table
from overland.corpus.pieces import (
    FinishPiece,
    ReadPiece,
    deidentify,
    finish_piece,
    kept_documents,
    piece_bytes,
    read_piece,
    read_pieces,
)
from overland.corpus.place import check_target, finished_folder, recipe_hash, work_folder
from overland.corpus.publish import TOKENIZER, Decided, train_tokenizer, write_corpus
from overland.corpus.report import CorpusReport
from overland.corpus.runners import Runner, few_collections, open_runner
from overland.corpus.section import CorpusSection
from overland.corpus.sources import Source
from overland.errors import UsageError


def build(
    section: CorpusSection,
    out: str | Path,
    *,
    tokenizer_extra_text: Sequence[str] = (),
    progress: Callable[..., Any] = runs.progress,
) -> CorpusReport:
    """Build a corpus folder at `out` and say what was done.

    `tokenizer_extra_text`: representative rendered conversations, given `section.tokenizer_extra_share` of the
    tokenizer's training text. Raises UsageError before anything is written where there is nothing to read or nothing
    that may be used; OverlandError where the disk refuses (what was finished is kept for the next try).
    """
    started = time.monotonic()
    opened = open_build(section, out, tokenizer_extra_text)
    out = opened.out
    with (
        work_folder(out, opened.recipe, opened.sources) as work,
        open_runner(section.scale) as runner,
        few_collections(),
    ):
        decided = decide(opened, work, runner, progress)
        pieces = finish_pieces(section, decided, work)
        with progress("corpus: tokenise", decided.kept, "document") as bar:
            for count, _ in zip(decided.kept_in, runner.map(finish_piece, pieces), strict=True):
                bar.advance(count)
        with finished_folder(out) as folder:
            if section.index.save:
                shutil.copytree(work / "duplicates", folder / FOLDER)
            index = {"index": {"sha256": opened.earlier.sha256}} if opened.earlier else {}
            about = {**opened.means.about, **index}
            bpe = work / TOKENIZER
            return write_corpus(
                section, folder, out, pieces, opened.sources, opened.recipe, bpe, started, progress, about,
                decided.samples,
            )  # fmt: skip


@dataclass(frozen=True)
class OpenedBuild:
    """A recipe with all that it names opened and checked; nothing is written yet."""

    section: CorpusSection
    out: Path
    extra: Sequence[str]
    means: OpenedMeans
    earlier: Earlier | None
    sources: list[Source]
    recipe: str


def open_build(section: CorpusSection, out: str | Path, extra: Sequence[str] = ()) -> OpenedBuild:
    """Refuse all that can be refused before anything is written (UsageError)."""
    out = Path(out)
    means, earlier = open_means(section), open_earlier(section)
    recipe = recipe_hash(section, extra, [*means.digests.values(), earlier.sha256 if earlier else ""])
    check_target(out, recipe)
    return OpenedBuild(section, out, extra, means, earlier, open_sources(section), recipe)


def pieces_of(opened: OpenedBuild, work: Path, workers: int) -> list[ReadPiece]:
    """The pieces to read, in the order in which they are decided over."""
    means = opened.means.stored(work / "means")
    size = piece_bytes(opened.section, workers)
    return list(read_pieces(opened.section, opened.sources, means, work, size))


def finish_pieces(section: CorpusSection, decided: Decided, work: Path) -> list[FinishPiece]:
    """The pieces to finish, once every document is decided over and the tokenizer is trained."""
    return [
        FinishPiece(
            section,
            decided.heldout,
            work / TOKENIZER,
            path,
            read,
            work / "rows" / path.name,
            work / "tokens" / f"{path.stem}.npy",
        )
        for path, read in zip(decided.paths, decided.read, strict=True)
    ]


def decide(opened: OpenedBuild, work: Path, runner: Runner, progress: Callable[..., Any]) -> Decided:
    """Read what is not read yet, decide over every document and train the tokenizer; done once, then remembered."""
    done = work / "decided.pickle"
    if done.exists():
        decided: Decided = pickle.loads(done.read_bytes())
        return decided
    pieces = pieces_of(opened, work, runner.workers)
    decided = _decide(opened.section, opened.sources, opened.earlier, pieces, work, runner, progress)
    sample = _sample(opened.section, decided)
    train_tokenizer(opened.section, decided, sample, opened.extra, work, progress)
    runs.atomic_write(done, pickle.dumps(decided))
    return decided


def _decide(
    section: CorpusSection,
    sources: list[Source],
    earlier: Earlier | None,
    pieces: list[ReadPiece],
    work: Path,
    runner: Runner,
    progress: Callable[..., Any],
) -> Decided:
    """Read all pieces and decide over their documents in order; what is decided lies in parts on disk."""
    admission = Admission(section, sources)
    duplicates = Duplicates(section, work)
    if earlier:
        earlier.fill(section, admission.seen, duplicates)
    decided = Decided(samples_of_rule=section.rejected_samples)
    # A piece is asked for unless its source is full by then; one that was asked for too early is simply not used.
    results = runner.map(read_piece, (piece for piece in pieces if not admission.full(piece.source)))
    with progress("corpus: read", int(section.max_megabytes * 1e6), "byte") as bar:
        for at, piece in enumerate(pieces):
            read, rows, documents = _admitted(piece, admission, results, bar)
            texts = [document.utf8 for document in documents]
            for document in documents:
                if document.kept:
                    duplicates.decide(document)
            path = work / "decided" / f"{at:06d}.arrow"
            write_table(path, decided_table(read, rows, documents, texts))
            decided.add(path, piece.path, documents, section.seed)
            if at + 1 == len(pieces) or pieces[at + 1].source is not piece.source:
                admission.refuse_useless(piece.source)
    if not decided.kept:
        reasons = ", ".join(f"{count} {why}" for why, count in decided.reasons.most_common(4))
        raise UsageError(
            f"corpus: nothing is left of {decided.documents} documents ({reasons}); loosen the rules or add text"
        )
    decided.heldout = heldout_rule(section, np.array(decided.groups, dtype=np.uint64))
    if section.index.save:
        save_index(work / "duplicates", admission.seen, duplicates)
    return decided


def _admitted(
    piece: ReadPiece, admission: Admission, results: Iterator[int], bar: Any
) -> tuple[Any, list[int], list[Document]]:
    """(what was read, the row in it of each document, the documents after admission) of a piece. A file that the budget
    leaves out has one document, whose row is -1."""
    if admission.full(piece.source):
        unread = [admission.unread(piece.source, entry) for entry in piece.entries]
        return None, [-1] * len(unread), unread
    while next(results) != piece.number:
        pass
    table = read_table(piece.path)
    documents, entries = documents_of(table, history=False), table["entry"].to_pylist()
    rows: list[int] = []
    admitted: list[Document] = []
    at = 0
    for number, entry in enumerate(piece.entries):
        start = at
        while at < len(entries) and entries[at] == number:
            at += 1
        if admission.full(piece.source):
            rows.append(-1)
            admitted.append(admission.unread(piece.source, entry))
            continue
        for row in range(start, at):
            bar.advance(admission.admit(piece.source, documents[row]))
            rows.append(row)
            admitted.append(documents[row])
    return table, rows, admitted


def _sample(section: CorpusSection, decided: Decided) -> list[str]:
    """The tokenizer's text: training documents in drawn order up to the budget, so the held-out text shapes nothing."""
    left = budget = int(section.tokenizer_megabytes * 1e6)
    chosen: dict[int, list[int]] = {}
    order: list[tuple[int, int]] = []
    for place in np.argsort(np.array(decided.orders, dtype=np.uint64), kind="stable"):
        if left <= -0.1 * budget:  # a little more than needed: placeholders may be shorter than what they replace
            break
        if _is_train(decided.heldout, decided.groups[place]):
            part, row = decided.parts[place], decided.rows[place]
            chosen.setdefault(part, []).append(row)
            order.append((part, row))
            left -= decided.sizes[place]
    texts: dict[tuple[int, int], str] = {}
    for part, rows in sorted(chosen.items()):
        documents = kept_documents(read_table(decided.paths[part]), decided.read[part], rows)
        deidentify(section, documents)
        for row, document in zip(rows, documents, strict=True):
            texts[part, row] = document.text
    sample: list[str] = []
    for key in order:
        if budget <= 0:
            break
        sample.append(texts[key][:budget])
        budget -= len(texts[key])
    return sample


def _is_train(heldout: Heldout, drawn: int) -> bool:
    return not ((drawn < heldout.limit or drawn == heldout.always) and drawn != heldout.never)
