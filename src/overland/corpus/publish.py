"""Writing a corpus: tokenizer, shards, index, the tables of documents and decisions, lineage, attribution."""

from __future__ import annotations

import json
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overland import runs
from overland.chat import SPECIAL_TOKENS, build_tokenizer
from overland.corpus import pii
from overland.corpus.bpe import train_bpe
from overland.corpus.clean import Heldout, group_draw
from overland.corpus.croissant import CROISSANT, describe
from overland.corpus.document import DROPPED, KEPT, TRIM, TRIMMED, Document
from overland.corpus.gather import authorisations_of, draw
from overland.corpus.parts import decisions_of, decisions_schema, documents_of, documents_schema, read_table
from overland.corpus.personal_vault import VAULT, vault_schema
from overland.corpus.pieces import FinishPiece
from overland.corpus.report import CorpusReport
from overland.corpus.section import CorpusSection
from overland.corpus.shards import DTYPE, FORMAT, ShardWriter, write_index
from overland.corpus.sources import Source
from overland.licences import BillLine, bill_of_materials, profile

FORMAT_VERSION = "overland corpus 2"
REJECTED = "rejected.jsonl"
TOKENIZER = "bpe.json"  # of a work folder, without special tokens
ROWS = 16_384  # of a Parquet row group, whatever the parts were


@dataclass
class Decided:
    """What is known once every document was decided over: where each kept one lies and what it draws."""

    paths: list[Path] = field(default_factory=list)
    read: list[Path] = field(default_factory=list)
    """The part that each of `paths` was decided from."""
    kept_in: list[int] = field(default_factory=list)
    parts: array[int] = field(default_factory=lambda: array("I"))
    """Of each document that was kept: the one of `paths` and the row where it stands, its draws and its characters."""
    rows: array[int] = field(default_factory=lambda: array("I"))
    orders: array[int] = field(default_factory=lambda: array("Q"))
    groups: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    documents: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    heldout: Heldout = field(default_factory=lambda: Heldout(0, 0))
    samples_of_rule: int = 0
    samples: dict[str, list[Document]] = field(default_factory=dict)
    """The first documents that each rule rejected, by its reason."""

    @property
    def kept(self) -> int:
        return len(self.rows)

    def add(self, path: Path, read: Path, documents: list[Document], seed: int) -> None:
        """Count in the documents of a part."""
        before = self.kept
        for row, document in enumerate(documents):
            if document.kept:
                self.parts.append(len(self.paths))
                self.rows.append(row)
                self.orders.append(order_draw(seed, document.id))
                self.groups.append(group_draw(seed, document))
                self.sizes.append(document.n_chars)
            elif document.sample and len(self.samples.setdefault(document.reason, [])) < self.samples_of_rule:
                self.samples[document.reason].append(documents_of(read_table(path).slice(row, 1))[0])
        self.paths.append(path)
        self.read.append(read)
        self.kept_in.append(self.kept - before)
        self.documents += len(documents)
        self.reasons.update(reasons_of(document.reason for document in documents))


def order_draw(seed: int, document_id: str) -> int:
    """The number, below 2^64, that says where in the shards a document comes."""
    return int.from_bytes(draw(seed, "order", document_id)[:8], "big")


def train_tokenizer(
    section: CorpusSection,
    decided: Decided,
    sample: list[str],
    extra: Sequence[str],
    work: Path,
    progress: Callable[..., Any],
) -> Path:
    """Train the byte-level BPE on the sample; the file, without special tokens, that workers tokenise with."""
    path = work / TOKENIZER
    if not path.exists():
        with progress("corpus: tokenizer", None):
            bpe = train_bpe(sample, section.vocab_size - len(SPECIAL_TOKENS), extra, section.tokenizer_extra_share)
            runs.atomic_write(path, bpe.to_str())
    return path


def write_corpus(
    section: CorpusSection,
    folder: Path,
    out: Path,
    pieces: list[FinishPiece],
    sources: list[Source],
    recipe: str,
    bpe: Path,
    started: float,
    progress: Callable[..., Any],
    about: dict[str, Any],
    samples: dict[str, list[Document]],
) -> CorpusReport:
    """Write every file of the corpus into `folder`, which will be renamed to `out`.

    `about`: what else than the recipe decided (evaluation sets, a classifier, an earlier index), for the lineage;
    `samples`: documents that rules rejected.
    """
    from tokenizers import Tokenizer

    tokenizer = build_tokenizer(Tokenizer.from_file(str(bpe)))
    tokenizer.save(folder / "tokenizer.json")
    eos = tokenizer.special("[EOS]")
    tally = _Tally()
    _write_tables(folder, tally.count(section.seed, [piece.rows for piece in pieces]))
    writers = {name: ShardWriter(folder / "shards", name, eos, section.shard_tokens) for name in ("train", "heldout")}
    tokens = [np.load(piece.tokens, mmap_mode="r") for piece in pieces]
    with progress("corpus: shards", len(tally.kept), "document") as bar:
        for place in np.argsort(np.array([kept.order for kept in tally.kept], dtype=np.uint64), kind="stable"):
            kept = tally.kept[place]
            ids = tokens[kept.part][kept.start : kept.start + kept.tokens]
            writers[kept.split].add(kept.id, ids, kept.n_bytes)
            bar.advance()
    splits = {name: writer.close() for name, writer in writers.items()}
    write_index(
        folder, {"format": FORMAT, "vocab_size": tokenizer.vocab_size, "eos": eos, "dtype": DTYPE.str, "splits": splits}
    )
    rule = profile(section.licences).rule
    bill = bill_of_materials(tally.lines(), rule)
    report = _report(out, tally, splits, tokenizer.vocab_size, bill, sources, time.monotonic() - started)
    runs.atomic_write(folder / "ATTRIBUTION.md", attribution_page(bill))
    lineage = {**_lineage(section, recipe, bill, report), **about}
    if section.rejected_samples:
        runs.atomic_write(folder / REJECTED, "".join(_sample_lines(section, samples)))
    runs.write_json(folder / CROISSANT, describe(folder, lineage))
    runs.write_json(folder / "lineage.json", {**lineage, "files": file_hashes(folder)})
    return report


class _Kept(NamedTuple):
    """A document's tokens: [start, start + tokens) of a part."""

    id: str
    split: str
    order: int
    part: int
    start: int
    tokens: int
    n_bytes: int


@dataclass
class _Tally:
    """What the tables say in sum, counted while they are written."""

    kept: list[_Kept] = field(default_factory=list)
    weights: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)
    """(tokens, bytes, documents) by licence, source, attribution and address."""
    decisions: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    stages: dict[str, Counter[str]] = field(default_factory=dict)
    cut: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    domains: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, seed: int, parts: Sequence[Path]) -> Iterator[Any]:
        """The parts' tables, counted one by one."""
        import pyarrow.compute as pc

        for part, path in enumerate(parts):
            table = read_table(path)
            self._count_events(table)
            self.decisions.update(table["decision"].to_pylist())
            self.reasons.update(reasons_of(table["reason"].to_pylist()))
            self._count_kept(seed, part, table.filter(pc.not_equal(table["decision"], DROPPED)))
            yield table

    def _count_events(self, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        events = pa.Table.from_struct_array(table["events"].combine_chunks().flatten())
        for row in events.group_by(["stage", "outcome"]).aggregate([([], "count_all")]).to_pylist():
            self.stages.setdefault(row["stage"], Counter())[row["outcome"]] += row["count_all"]
        cuts = events.filter(pc.equal(events["outcome"], TRIM))
        for stage, characters in zip(cuts["stage"].to_pylist(), cuts["value"].to_pylist(), strict=True):
            self.cut[stage] += int(characters)

    def _count_kept(self, seed: int, part: int, table: Any) -> None:
        names = ("id", "split", "tokens", "bytes", "domain", "licence", "source", "attribution", "url", "pii_replaced")
        start = 0
        for name, split, tokens, n_bytes, domain, licence, source, attribution, url, replaced in zip(
            *(table[column].to_pylist() for column in names), strict=True
        ):
            self.kept.append(_Kept(name, split, order_draw(seed, name), part, start, tokens - 1, n_bytes))
            start += tokens - 1
            entry = self.domains.setdefault(domain, {"documents": 0, "tokens": 0, "bytes": 0})
            entry["documents"] += 1
            entry["tokens"] += tokens
            entry["bytes"] += n_bytes
            for kind, count in replaced:
                self.replaced[kind] += count
            weight = self.weights.setdefault((licence, source, attribution, url), [0, 0, 0])
            for at, more in enumerate((tokens, n_bytes, 1)):
                weight[at] += more

    def lines(self) -> Iterator[BillLine]:
        """What the bill of licences is made of."""
        for (licence, source, attribution, url), (tokens, n_bytes, documents) in self.weights.items():
            yield BillLine(licence, source, tokens, n_bytes, attribution, url, documents)


def _write_tables(folder: Path, parts: Iterator[Any]) -> None:
    """documents.parquet and decisions.parquet out of the tables of parts, a row group at a time."""
    import pyarrow.compute as pc

    vault: TableWriter | None = None
    documents = TableWriter(folder / "documents.parquet", documents_schema())
    decisions = TableWriter(folder / "decisions.parquet", decisions_schema())
    for part in parts:
        documents.add(part.select(documents_schema().names))
        decisions.add(decisions_of(part))
        sealed = part.filter(pc.greater(pc.binary_length(part["sealed"]), 0))
        if len(sealed):
            vault = vault or TableWriter(folder / VAULT, vault_schema())
            vault.add(sealed.select(["id", "sealed"]).rename_columns(vault_schema().names))
    documents.close()
    decisions.close()
    if vault:
        vault.close()


class TableWriter:
    """A Parquet file whose row groups have the same size however the rows arrived."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow.parquet as pq

        self.file = open(path, "wb")  # noqa: SIM115 - closed with the table
        self.writer = pq.ParquetWriter(self.file, schema, compression="zstd")
        self.waiting: list[Any] = []
        self.rows = 0

    def add(self, table: Any) -> None:
        """Append rows."""
        self.waiting.append(table)
        self.rows += table.num_rows
        if self.rows >= ROWS:
            self._write(whole_groups=True)

    def _write(self, whole_groups: bool) -> None:
        import pyarrow as pa

        table = pa.concat_tables(self.waiting).combine_chunks()
        cut = table.num_rows - table.num_rows % ROWS if whole_groups else table.num_rows
        for start in range(0, cut, ROWS):
            self.writer.write_table(table.slice(start, min(ROWS, cut - start)), row_group_size=ROWS)
        self.waiting, self.rows = [table.slice(cut)], table.num_rows - cut

    def close(self) -> None:
        """Write what is left and the footer."""
        if self.rows:
            self._write(whole_groups=False)
        self.writer.close()
        self.file.close()


def _sample_lines(section: CorpusSection, samples: dict[str, list[Document]]) -> Iterator[str]:
    """One JSON line a rejected document, without personal data."""
    for _, documents in sorted(samples.items()):
        shown = [document.sample for document in documents]
        if section.deidentify:
            domains, languages = [d.domain for d in documents], [d.language for d in documents]
            shown = [done.text for done in pii.replace_all(shown, domains, languages)]
        for document, text in zip(documents, shown, strict=True):
            row, event = document.row(), document.events[-1]
            said = {name: row[name] for name in ("reason", "id", "source", "path")}
            said |= {"value": event.value, "threshold": event.threshold, "text": text}
            yield json.dumps(said, ensure_ascii=False) + "\n"


def reasons_of(reasons: Iterable[str]) -> Counter[str]:
    """Reasons without the names in them, so that they can be counted."""
    out: Counter[str] = Counter()
    for reason in reasons:
        if reason:
            if "duplicate" in reason:
                reason = reason.split(" of ")[0].split(":")[0]
            out[reason] += 1
    return out


def attribution_page(bill: dict[str, dict[str, Any]]) -> str:
    """Who is to be named, by licence: what goes along with the corpus and with what is trained on it."""
    out = ["# Attribution", "", "The text of this corpus is by the people and projects named here.", ""]
    for licence, entry in bill.items():
        out += [f"## {licence}", ""]
        out += [f"Licence: {url}" for url in entry["urls"]]
        out += [""] if entry["urls"] else []
        named = entry["attribution_owed"]
        out += [f"- {who}" for who in named] or ["Nobody has to be named."]
        out.append("")
    return "\n".join(out)


def _report(
    out: Path,
    tally: _Tally,
    splits: dict[str, Any],
    vocab_size: int,
    bill: dict[str, dict[str, Any]],
    sources: list[Source],
    seconds: float,
) -> CorpusReport:
    tokens = sum(split["tokens"] for split in splits.values())
    return CorpusReport(
        path=out,
        seconds=seconds,
        documents={name: tally.decisions[name] for name in (KEPT, TRIMMED, DROPPED)},
        reasons=dict(tally.reasons.most_common()),
        stages={name: dict(sorted(counts.items())) for name, counts in sorted(tally.stages.items())},
        characters_cut=dict(sorted(tally.cut.items())),
        domains=dict(sorted(tally.domains.items())),
        train_tokens=splits["train"]["tokens"],
        heldout_tokens=splits["heldout"]["tokens"],
        train_bytes=splits["train"]["text_bytes"],
        heldout_bytes=splits["heldout"]["text_bytes"],
        train_documents=splits["train"]["documents"],
        heldout_documents=splits["heldout"]["documents"],
        vocab_size=vocab_size,
        bytes_per_token=sum(split["text_bytes"] for split in splits.values()) / max(1, tokens),
        pii_replaced=dict(sorted(tally.replaced.items())),
        licences=bill,
        skipped={source.name: dict(source.skipped.most_common()) for source in sources},
    )


def _lineage(
    section: CorpusSection, recipe: str, bill: dict[str, dict[str, Any]], report: CorpusReport
) -> dict[str, Any]:
    figures = report.to_dict()
    for name in ("path", "seconds", "licences"):  # the file is the same for the same input, wherever and whenever built
        del figures[name]
    recipe_fields = section.model_dump(mode="json", exclude={"text", "scale"})
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
        "removed": [],
    }


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that lineage.json vouches for; index.json vouches for the shards."""
    names = (
        "index.json",
        "documents.parquet",
        "decisions.parquet",
        "tokenizer.json",
        "ATTRIBUTION.md",
        CROISSANT,
        VAULT,
        REJECTED,
    )
    return {name: runs.sha256_file(folder / name) for name in names if (folder / name).exists()}
