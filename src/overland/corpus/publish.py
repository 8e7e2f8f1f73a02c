"""Writing a corpus: tokenizer, shards, index, the table of documents, lineage."""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overland import runs
from overland.chat import SPECIAL_TOKENS, build_tokenizer
from overland.corpus.bpe import train_bpe
from overland.corpus.document import DROPPED, KEPT, TRIMMED, Document
from overland.corpus.gather import authorisations_of, draw
from overland.corpus.report import CorpusReport
from overland.corpus.section import CorpusSection
from overland.corpus.shards import DTYPE, FORMAT, ShardWriter
from overland.corpus.sources import Source
from overland.licences import BillLine, bill_of_materials

FORMAT_VERSION = "overland corpus 1"


def write_corpus(
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
    """Write every file of the corpus into `folder`, which will be renamed to `out`."""
    kept = sorted((d for d in documents if d.kept), key=lambda d: draw(section.seed, "order", d.id))
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
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    runs.atomic_write(path, buffer.getvalue())


def reasons_of(documents: list[Document]) -> Counter[str]:
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
        reasons=dict(reasons_of(documents).most_common()),
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
            for word in authorisations_of(section)
        ],
        "figures": figures,
        "files": {file.name: runs.sha256_file(file) for file in files},
    }
