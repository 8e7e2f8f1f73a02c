"""De-identification and removal: megabytes of text per CPU-second, recall on the labelled set, hits on code, seconds.

    python -m benchmarks.corpus_personal [--quick] [--labelled presidio_synth_v2.json] [--json OUT]

Text is what this machine has: the standard library and C++ headers as code, /usr/share as documentation. Recall is on
presidio-research's synthetic set (1,500 texts, MIT), over e-mail, phone, IP, card, IBAN and SSN; the words that may
stand beside a phone were chosen with that set at hand, so it flatters. The peer is datatrove's PIIFormatter (e-mail and
IPv4 only) where it is installed in this environment. Removal takes one source of forty out of a made-up corpus of
200 MB (100 million tokens, 25,000 documents) on this machine's disk, proof included.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import resource
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from overland import runs
from overland.corpus import pii
from overland.corpus.document import Document
from overland.corpus.parts import decisions_table, documents_table
from overland.corpus.publish import TableWriter
from overland.corpus.remove import remove
from overland.corpus.shards import DTYPE, FORMAT, ShardWriter

STRUCTURED = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "IP_ADDRESS": "IP",
    "CREDIT_CARD": "CARD",
    "IBAN_CODE": "IBAN",
    "US_SSN": "ID",
}


def cpu(run: Callable[[], Any]) -> tuple[Any, float]:
    began = resource.getrusage(resource.RUSAGE_SELF)
    out = run()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return out, ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def texts_of(code: bool, limit: float) -> tuple[list[str], list[str]]:
    """(texts, languages) of up to `limit` megabytes."""
    if code:
        names = sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/**/*.py", recursive=True))
        names += sorted(glob.glob(sysconfig.get_paths()["purelib"] + "/torch/include/**/*.h", recursive=True))
    else:
        names = sorted(glob.glob("/usr/share/**/*", recursive=True))
        names = [name for name in names if name.endswith((".txt", ".md", ".rst", ".html", "README", "copyright"))]
    random.Random(0).shuffle(names)
    texts, languages, size = [], [], 0
    for name in names:
        if os.path.isfile(name) and os.path.getsize(name) < 4e6:
            text = Path(name).read_text(encoding="utf-8", errors="replace")
            size += len(text.encode())
            texts.append(text)
            languages.append("python" if name.endswith(".py") else "")
        if size > limit * 1e6:
            break
    return texts, languages


def speed(code: bool, limit: float) -> dict[str, Any]:
    texts, languages = texts_of(code, limit)
    domain = "code" if code else "prose"

    def run() -> list[pii.Replaced]:
        out = []
        for at in range(0, len(texts), 256):
            part = texts[at : at + 256]
            out += pii.replace_all(part, [domain] * len(part), languages[at : at + 256])
        return out

    run()  # the library is built and warm
    done, seconds = cpu(run)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    counts = sum((one.counts for one in done), Counter[str]())
    return {
        "MB": megabytes,
        "MB per CPU-second": megabytes / seconds,
        "hits per MB": {kind: count / megabytes for kind, count in counts.items()},
        "hits per MB beside e-mail": (counts.total() - counts["email"]) / megabytes,
    }


def labelled(path: Path) -> dict[str, Any]:
    rows = json.loads(path.read_text())
    found = pii.find_all([row["full_text"] for row in rows], ["prose"] * len(rows))
    total, hit, false = Counter[str](), Counter[str](), 0
    for row, hits in zip(rows, found, strict=True):
        for span in row["spans"]:
            if kind := STRUCTURED.get(span["entity_type"]):
                total[kind] += 1
                hit[kind] += any(h.start <= span["start_position"] and span["end_position"] <= h.end for h in hits)
        false += sum(
            not any(s["start_position"] < h.end and h.start < s["end_position"] for s in row["spans"]) for h in hits
        )
    by_kind = {kind: f"{hit[kind]}/{total[kind]}" for kind in total}
    return {"recall": hit.total() / total.total(), "by kind": by_kind, "hits on nothing labelled": false}


def datatrove(texts: list[str]) -> dict[str, Any] | str:
    try:
        from datatrove.data import Document as TheirDocument
        from datatrove.pipeline.formatters import PIIFormatter
    except ImportError:
        return "not installed in this environment"
    step = PIIFormatter()
    _, seconds = cpu(lambda: [step.format(TheirDocument(text=text, id="0").text) for text in texts])
    return {"MB per CPU-second": sum(len(text.encode()) for text in texts) / 1e6 / seconds}


def removal(tokens: int, documents: int) -> dict[str, Any]:
    """Seconds to take one source of forty out of a corpus of so many tokens."""
    rng = np.random.Generator(np.random.Philox(key=0))
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        folder = Path(scratch) / "corpus"
        (folder / "shards").mkdir(parents=True)
        writer = ShardWriter(folder / "shards", "train", 0, 1 << 20)
        made = [
            Document(f"source-{n % 40}", f"{n}.txt", "prose", "en", b"", f"{n:064d}", "CC0-1.0")
            for n in range(documents)
        ]
        each = tokens // documents
        for n in np.random.Generator(np.random.Philox(key=1)).permutation(documents):
            document = made[n]
            document.split, document.tokens, document.n_bytes = "train", each, 2 * each
            document.note("licence", "pass", "cc", "CC0-1.0")
            writer.add(document.id, rng.integers(1, 30_000, each - 1, dtype=np.uint16), 2 * each)
        index = {
            "format": FORMAT,
            "vocab_size": 32_000,
            "eos": 0,
            "dtype": DTYPE.str,
            "splits": {"train": writer.close()},
        }
        runs.write_json(folder / "index.json", index)
        for name, table in (("documents", documents_table(made)), ("decisions", decisions_table(made))):
            out = TableWriter(folder / f"{name}.parquet", table.schema)
            out.add(table)
            out.close()
        runs.write_json(folder / "tokenizer.json", {})
        runs.write_json(folder / "lineage.json", {"recipe_sha256": "0" * 64, "recipe": {}, "figures": {}})
        began = time.monotonic()
        done, seconds = cpu(lambda: remove(folder, source="source-7", date="2026-12-01"))
        return {
            "corpus MB of tokens": tokens * 2 / 1e6,
            "documents removed": done.documents,
            "shards rewritten": done.shards_rewritten,
            "seconds": time.monotonic() - began,
            "CPU-seconds": seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--labelled", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    limit = 8.0 if args.quick else 40.0
    report: dict[str, Any] = {"code": speed(True, limit), "documentation": speed(False, limit)}
    report["datatrove on documentation"] = datatrove(texts_of(False, 4.0)[0])
    if args.labelled:
        report["labelled set"] = labelled(args.labelled)
    report["removal"] = removal(*((10_000_000, 2_500) if args.quick else (100_000_000, 25_000)))
    for name, part in report.items():
        print(name)
        for key, value in part.items() if isinstance(part, dict) else [("", part)]:
            print(f"  {key:28} {value}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
