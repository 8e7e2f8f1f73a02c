"""The whole corpus build: plain-text Parquet in, packed shards and lineage out, in MB per CPU-second and per second.

    python -m benchmarks.corpus_build [--quick] [--megabytes 218] [--runners here,processes] [--json OUT]

The input is `benchmarks.corpus_set` (or a part of it, drawn evenly) as Parquet with row groups of 8 MB: text, id,
domain and licence a row. The build is the one of `overland corpus build` with the default rules: licence gate,
language, quality rules, exact and near duplicates, repeated spans and paragraphs, de-identification, a tokenizer of
16,000 entries trained on 2 MB of it, shards, documents.parquet, decisions.parquet, hashes. Each runs in a process of
its own, so that CPU seconds (user and system, workers and imports included) and memory are the build's alone. The
seconds of the first process are also given by stage; what does not grow with the text (its start and the tokenizer's
training) is counted in, and once more left out. Memory: the largest sum over the processes of what is theirs
(proportional set size), looked at five times a second. On two idle cores:

    OMP_NUM_THREADS=1 python -m benchmarks.corpus_build --runners here,processes --workers 2
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from benchmarks import corpus_set

GROUP_BYTES = 8e6


def make_input(folder: Path, megabytes: float, target: Path) -> float:
    """Write part of the set as one Parquet file with a licence; the megabytes of text in it."""
    table = pq.read_table(folder / "texts.parquet", columns=["id", "text", "domain"])
    sizes = pa.compute.binary_length(table["text"]).to_numpy()
    step = max(1, round(sizes.sum() / 1e6 / megabytes))
    table = table.take(list(range(0, len(table), step)))
    table = table.append_column("license", pa.array(["CC-BY-4.0"] * len(table)))
    rows = max(1, int(GROUP_BYTES / max(1.0, sizes.mean())))
    pq.write_table(table, target, compression="zstd", row_group_size=rows)
    return float(pa.compute.sum(pa.compute.binary_length(table["text"])).as_py()) / 1e6


def build_here(source: Path, out: Path, runner: str, workers: int, memory: float) -> None:
    """One build in this process; prints what it took."""
    from overland.corpus import CorpusSection, build

    section = CorpusSection.model_validate(
        {
            "stdlib": False,
            "source": [{"name": "set", "path": str(source), "licence": "CC-BY-4.0", "attribution": "its authors"}],
            "max_megabytes": 1e6,
            "vocab_size": 16_000,
            "scale": {"runner": runner, "workers": workers, "memory_megabytes": memory},
        }
    )
    began = time.monotonic()
    stages = {"start": time.process_time()}

    @contextmanager
    def progress(label: str, *about: Any) -> Iterator[Any]:
        before = time.process_time()
        yield SimpleNamespace(advance=lambda *figures, **named: None)
        stages[label] = time.process_time() - before

    report = build(section, out, progress=progress)
    own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "seconds": time.monotonic() - began,
        "CPU-seconds": own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime,
        "CPU-seconds of this process": own.ru_utime + own.ru_stime,
        "of these": stages,
        "documents": report.documents,
        "tokens": report.train_tokens + report.heldout_tokens,
    }
    print(json.dumps(found))


def memory_of(root: int) -> float:
    """MB that a process and its descendants hold, shared pages counted once."""
    todo, total = [root], 0.0
    while todo:
        pid = todo.pop()
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1e3
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return total


def measured(source: Path, megabytes: float, runner: str, workers: int, memory: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=corpus_set.CACHE) as scratch:
        out = Path(scratch) / "corpus"
        command = [sys.executable, "-m", "benchmarks.corpus_build", "--one", str(source), str(out), runner]
        command += [str(workers), str(memory)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        peak = 0.0
        said: list[tuple[str, str]] = []
        reader = threading.Thread(target=lambda: said.append(process.communicate()))
        reader.start()
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            time.sleep(0.2)
        reader.join()
        if process.returncode:
            raise SystemExit(said[0][1][-2000:])
        found = json.loads(said[0][0].splitlines()[-1])
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    return {
        "MB of text": megabytes,
        "MB per CPU-second": megabytes / found["CPU-seconds"],
        "without start and training": megabytes
        / (found["CPU-seconds"] - found["of these"]["start"] - found["of these"]["corpus: tokenizer"]),
        "MB per second": megabytes / found["seconds"],
        "peak MB of memory": peak,
        "MB written": size,
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 MB")
    parser.add_argument("--megabytes", type=float, default=218.0)
    parser.add_argument("--runners", default="here,processes")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--memory", type=float, default=2000.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        source, out, runner, workers, memory = args.one
        build_here(Path(source), Path(out), runner, int(workers), float(memory))
        return
    folder = corpus_set.build()
    source = corpus_set.CACHE / f"build-{args.megabytes:g}"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    megabytes = make_input(folder, 20.0 if args.quick else args.megabytes, source / "texts.parquet")
    report = {}
    for runner in args.runners.split(","):
        report[runner] = measured(source, megabytes, runner, args.workers, args.memory)
        print(runner)
        for key, value in report[runner].items():
            print(f"  {key:28} {value}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
