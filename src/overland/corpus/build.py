"""Raw text to token shards: read, licence gate, rules, duplicates, personal data, tokenizer, shards, lineage.

All that can be refused is refused before anything is written. Files are written into a hidden folder beside `out`, which
takes its name when complete: an interrupted build leaves no half corpus.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overland import runs
from overland.chat import SPECIAL_TOKENS, build_tokenizer
from overland.corpus import pii
from overland.corpus.bpe import train_bpe
from overland.corpus.dedup import NearDuplicates, RepeatedParagraphs, normalised_hash
from overland.corpus.document import DROPPED, KEPT, TRIMMED, Document, Span
from overland.corpus.quality import check
from overland.corpus.reading import read_documents
from overland.corpus.report import CorpusReport
from overland.corpus.section import CorpusSection
from overland.corpus.shards import DTYPE, FORMAT, ShardWriter
from overland.corpus.sources import Source, stdlib_source, text_sources
from overland.errors import OverlandError, UsageError
from overland.licences import Authorisation, BillLine, bill_of_materials, decide

FORMAT_VERSION = "overland corpus 1"


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
    that may be used; OverlandError where the disk refuses.
    """
    started = time.monotonic()
    out = Path(out)
    recipe = _recipe_hash(section, tokenizer_extra_text)
    _check_target(out, recipe)
    sources = _sources(section)
    with progress("corpus: read", int(section.max_megabytes * 1e6), "byte") as bar:
        documents = _select(section, sources, bar)
    _clean(section, documents, progress)
    kept = [document for document in documents if document.kept]
    if not kept:
        reasons = ", ".join(f"{count} {why}" for why, count in _reasons(documents).most_common(4))
        raise UsageError(
            f"corpus: nothing is left of {len(documents)} documents ({reasons}); loosen the rules or add text"
        )
    _split(section, kept)
    with _finished_folder(out) as folder:
        report = _write(section, folder, out, documents, sources, recipe, tokenizer_extra_text, started, progress)
    return report


# -- what to read ------------------------------------------------------------------------------------------------------


def _sources(section: CorpusSection) -> list[Source]:
    sources = list(text_sources(section.text, section.text_licence))
    if section.stdlib:
        sources.append(stdlib_source())
    if not sources:
        raise UsageError("corpus: nothing to read; give --text DIR or set corpus.stdlib=true")
    return sources


def _authorisations(section: CorpusSection) -> list[Authorisation]:
    words = [word.record() for word in section.authorisations]
    if section.text_authorised:
        words.append(Authorisation("*", "the user", section.text_authorised, sources=("text:*",)))
    return words


def _draw(seed: int, *parts: str) -> bytes:
    return hashlib.sha256("\0".join((str(seed), *parts)).encode("utf-8", "surrogateescape")).digest()


def _select(section: CorpusSection, sources: list[Source], bar: Any) -> list[Document]:
    """Read files in a drawn order until the budget is full; licence gate, rules and exact duplicates on the way.

    The order of drawing is also the order of survival: of two equal documents the one drawn first stays, the user's own
    text before the standard library.
    """
    words = _authorisations(section)
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
        for entry in sorted(source.files, key=lambda file: _draw(section.seed, source.name, file.path)):
            if used >= limit:
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
                    if size > budget - used:
                        document.drop("budget: larger than what is left of corpus.max_megabytes")
                        continue
                    used += size
                    bar.advance(size)
        _refuse_unlicensed(section, source, found)
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


def _refuse_unlicensed(section: CorpusSection, source: Source, found: list[Document]) -> None:
    """A folder of the user's that the licence gate shuts out whole is a mistake to name, not a small corpus."""
    if source.is_stdlib or any(d.kept or not d.reason.startswith(("licence", "conflicting")) for d in found):
        return
    reasons = Counter(document.reason.removeprefix("licence: ") for document in found)
    why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
    raise UsageError(
        f"corpus.text: {source.root}: none of its {len(found)} documents may be used under profile "
        f"'{section.licences}' ({why}). Put a LICENSE file or SPDX lines there, state it with "
        '--set corpus.text_licence="CC-BY-4.0", or take the responsibility with '
        '--set corpus.text_authorised="I wrote these notes"'
    )


# -- what to keep ------------------------------------------------------------------------------------------------------


def _clean(section: CorpusSection, documents: list[Document], progress: Callable[..., Any]) -> None:
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


def _split(section: CorpusSection, kept: list[Document]) -> None:
    """Hold files out by hash: a module's docstrings and its source are one text, so they go together."""
    groups = {document.group: _draw(section.seed, "heldout", document.group) for document in kept}
    limit = int(section.heldout * 2**64)
    out = {group for group, draw in groups.items() if int.from_bytes(draw[:8], "big") < limit}
    in_order = sorted(groups, key=groups.__getitem__)
    if section.heldout > 0 and not out and len(groups) > 1:
        out = {in_order[0]}
    if len(out) == len(groups):
        out -= {in_order[-1]}
    for document in kept:
        document.split = "heldout" if document.group in out else "train"


# -- what to write -----------------------------------------------------------------------------------------------------


def _recipe_hash(section: CorpusSection, extra: Sequence[str]) -> str:
    digest = hashlib.sha256(section.model_dump_json().encode())
    for text in extra:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def _check_target(out: Path, recipe: str) -> None:
    """Only a corpus of this same recipe may be written over."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    lineage = out / "lineage.json"
    if not out.is_dir() or not lineage.is_file():
        raise UsageError(f"--out {out}: exists and is not a corpus; choose another folder")
    if runs.read_json(lineage).get("recipe_sha256") != recipe:
        raise UsageError(f"--out {out}: holds a corpus of another recipe; choose another folder or delete it")


@contextmanager
def _finished_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its name if all goes well, and vanishes if not."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for stale in out.parent.glob(f".{out.name}.*.partial"):
            if not _alive(stale.name.split(".")[-2]):
                shutil.rmtree(stale, ignore_errors=True)
        folder = out.parent / f".{out.name}.{os.getpid()}.partial"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            (folder / "shards").mkdir(parents=True)
            with runs.explain_disk_errors(out):
                yield folder
            runs.replace_folder(folder, out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise OverlandError(f"{out}: cannot be written ({error.strerror}); nothing was left behind") from error


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:
        return True
    return True


def _write(
    section: CorpusSection,
    folder: Path,
    out: Path,
    documents: list[Document],
    sources: list[Source],
    recipe: str,
    extra: Sequence[str],
    started: float,
    progress: Callable[..., Any],
) -> CorpusReport:
    kept = sorted((d for d in documents if d.kept), key=lambda d: _draw(section.seed, "order", d.id))
    with progress("corpus: tokenizer", None, "step") as bar:
        bpe = train_bpe(
            _sample(section, kept), section.vocab_size - len(SPECIAL_TOKENS), extra, section.tokenizer_extra_share
        )
        tokenizer = build_tokenizer(bpe)
        tokenizer.save(folder / "tokenizer.json")
        bar.advance()
    eos = tokenizer.special("[EOS]")
    writers = {name: ShardWriter(folder / "shards", name, eos, section.shard_tokens) for name in ("train", "heldout")}
    with progress("corpus: shards", len(kept), "document") as bar:
        for first in range(0, len(kept), 16):
            group = kept[first : first + 16]
            for document, encoding in zip(
                group, bpe.encode_batch_fast([d.text for d in group], add_special_tokens=False), strict=True
            ):
                _add(writers[document.split], document, encoding.ids)
                bar.advance()
    splits = {name: writer.close() for name, writer in writers.items()}
    runs.write_json(
        folder / "index.json",
        {
            "format": FORMAT,
            "vocab_size": tokenizer.vocab_size,
            "eos": eos,
            "dtype": DTYPE.str,
            "splits": splits,
        },
    )
    _write_table(folder / "documents.parquet", documents)
    bill = bill_of_materials(BillLine(d.licence, d.source, d.tokens, d.n_bytes) for d in kept)
    report = _report(out, documents, kept, splits, tokenizer.vocab_size, bill, sources, time.monotonic() - started)
    runs.write_json(folder / "lineage.json", _lineage(section, folder, recipe, bill, report))
    return report


def _sample(section: CorpusSection, kept: list[Document]) -> list[str]:
    """The tokenizer's text: training documents in drawn order up to the budget, so the held-out text shapes nothing."""
    texts: list[str] = []
    left = int(section.tokenizer_megabytes * 1e6)
    for document in kept:
        if document.split == "train" and left > 0:
            texts.append(document.text[:left])
            left -= len(document.text)
    return texts


def _add(writer: ShardWriter, document: Document, ids: list[int]) -> None:
    raw = document.text.encode()
    document.tokens, document.n_bytes = len(ids) + 1, len(raw)
    document.sha256_out = hashlib.sha256(raw).hexdigest()
    writer.add(document.id, ids, len(raw))


def _write_table(path: Path, documents: list[Document]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = [
        (name, pa.string()) for name in ("id", "source", "path", "licence", "licence_evidence", "domain", "language")
    ]
    span = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())])
    schema = pa.schema(
        [
            *text,
            ("decision", pa.string()),
            ("reason", pa.string()),
            ("spans_removed", pa.list_(span)),
            ("pii_replaced", pa.map_(pa.string(), pa.int64())),
            ("split", pa.string()),
            ("tokens", pa.int64()),
            ("bytes", pa.int64()),
            ("sha256_in", pa.string()),
            ("sha256_out", pa.string()),
        ]
    )
    rows = [{**row, "pii_replaced": list(row["pii_replaced"].items())} for row in (d.row() for d in documents)]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def _reasons(documents: list[Document]) -> Counter[str]:
    """Reasons without the names in them, so that they can be counted."""
    out: Counter[str] = Counter()
    for document in documents:
        if document.reason:
            out[document.reason.split(" of ")[0] if "duplicate" in document.reason else document.reason] += 1
    return out


def _report(
    out: Path,
    documents: list[Document],
    kept: list[Document],
    splits: dict[str, Any],
    vocab_size: int,
    bill: dict[str, dict[str, Any]],
    sources: list[Source],
    seconds: float,
) -> CorpusReport:
    domains: dict[str, dict[str, int]] = {}
    replaced: Counter[str] = Counter()
    for document in kept:
        entry = domains.setdefault(document.domain, {"documents": 0, "tokens": 0, "bytes": 0})
        entry["documents"] += 1
        entry["tokens"] += document.tokens
        entry["bytes"] += document.n_bytes
        replaced.update(document.pii_replaced)
    counts = Counter(document.decision for document in documents)
    tokens = sum(split["tokens"] for split in splits.values())
    return CorpusReport(
        path=out,
        seconds=seconds,
        documents={name: counts[name] for name in (KEPT, TRIMMED, DROPPED)},
        reasons=dict(_reasons(documents).most_common()),
        domains=dict(sorted(domains.items())),
        train_tokens=splits["train"]["tokens"],
        heldout_tokens=splits["heldout"]["tokens"],
        train_bytes=splits["train"]["text_bytes"],
        heldout_bytes=splits["heldout"]["text_bytes"],
        train_documents=splits["train"]["documents"],
        heldout_documents=splits["heldout"]["documents"],
        vocab_size=vocab_size,
        bytes_per_token=sum(split["text_bytes"] for split in splits.values()) / max(1, tokens),
        pii_replaced=dict(sorted(replaced.items())),
        licences=bill,
        skipped={source.name: dict(source.skipped.most_common()) for source in sources},
    )


def _lineage(
    section: CorpusSection, folder: Path, recipe: str, bill: dict[str, dict[str, Any]], report: CorpusReport
) -> dict[str, Any]:
    figures = report.to_dict()
    for name in ("path", "seconds", "licences"):  # the file is the same for the same input, wherever and whenever built
        del figures[name]
    recipe_fields = section.model_dump(mode="json", exclude={"text"})
    files = [folder / name for name in ("index.json", "documents.parquet", "tokenizer.json")]
    return {
        "format": FORMAT_VERSION,
        "recipe_sha256": recipe,
        "recipe": recipe_fields,
        "licences": bill,
        "authorisations": [
            {
                "licence": word.licence,
                "who": word.who,
                "reason": word.reason,
                "until": word.until.isoformat() if word.until else None,
                "sources": list(word.sources),
            }
            for word in _authorisations(section)
        ],
        "figures": figures,
        "files": {file.name: runs.sha256_file(file) for file in files},
    }
