"""The corpus benchmarks' input: technical English and code of Debian and Python, with planted duplicates.

    python -m benchmarks.corpus_set [--megabytes 218] [--out DIR]

Text comes from what the machine has (/usr/share/doc, the standard library, site-packages) and from Debian packages of
documentation and sources, which `apt-get download` fetches into the cache folder once (they are unpacked there, not
installed; without a network the set is as large as the machine allows, and the script says how large).

The set is `texts.parquet` (id, source, domain, text: 45 % prose where there is enough) and the truth about what was
planted:

- `near.parquet`: 4,000 documents, each a changed copy of another one (copy, original, kind), of ten kinds: word
  substitutions of 1, 2 and 5 %, insertions, deletions, sentences reordered, text re-wrapped, boilerplate put around,
  markup translated, and parts cut off. Which of them count is decided by the exact Jaccard similarity of their word
  5-grams, which `corpus_throughput` computes with Python sets.
- `spans.parquet`: 2,000 passages of 60 to 200 words of one document (the donor) put between the lines of a later one
  (the host), at 0, 2 and 5 % of edits: host, start, end (bytes of the text), donor, donor_start, donor_end, level, kind
  (words: substitutions; insert; delete; edit: all three in equal parts, as they are in the kinds that follow;
  reordered: thirds exchanged; reformatted: lines broken anew; markup: words put between asterisks and backquotes).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import io
import json
import random
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

CACHE = Path.home() / ".cache" / "overland" / "corpus_set"
PACKAGES = (
    *("linux-doc-6.1", "linux-source-6.1", "debian-handbook", "python3.11-doc", "perl-doc", "vim-doc", "git-doc"),
    *("manpages", "manpages-dev", "anarchism", "postgresql-doc-15", "libstdc++-12-doc", "jargon-text"),
    *("debian-policy", "developers-reference"),
)
PROSE_SUFFIXES = (".txt", ".rst", ".md", ".html", ".htm", ".pod", ".7", ".2", ".3", ".1", ".5", ".gz")
CODE_SUFFIXES = (".py", ".c", ".h", ".js", ".pl", ".pm", ".sh")
KINDS = (
    *("words 1%", "words 2%", "words 5%", "insert 2%", "delete 2%", "reorder", "rewrap", "boilerplate"),
    *("markup", "cut off"),
)
SPAN_KINDS = ("words", "insert", "delete", "edit", "reordered", "reformatted", "markup")
LEVELS = (0.0, 0.02, 0.05)
FORMAT = 4


def plain(raw: bytes, name: str) -> str | None:
    """The text of one file, or None where it is not UTF-8 text of 400 bytes to 400 kB."""
    if name.endswith(".gz"):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError):
            return None
        name = name[:-3]
    if not 400 <= len(raw) <= 400_000 or b"\0" in raw:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if name.endswith((".html", ".htm")):
        text = re.sub(r"(?is)<(script|style|head|nav).*?</\1>", " ", text)
        text = html.unescape(re.sub(r"(?s)<[^>]*>", "", text))
        text = re.sub(r"\n\s*\n\s*", "\n\n", text)
    return text.strip() + "\n" if len(text.strip()) >= 400 else None


def debian_files(package: str) -> Iterator[tuple[str, str, str]]:
    """(source, path, text) of a Debian package's documents and sources, unpacked in memory."""
    found = sorted(CACHE.glob(f"debs/{package}_*.deb"))
    if not found:
        (CACHE / "debs").mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=CACHE / "debs", capture_output=True)
        found = sorted(CACHE.glob(f"debs/{package}_*.deb"))
        if not found:
            print(f"corpus_set: {package} cannot be fetched; the set goes without it", file=sys.stderr)
            return
    unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(found[0])], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
        for member in tar:
            if not member.isfile():
                continue
            file = tar.extractfile(member)
            assert file is not None
            if member.name.endswith(".tar.xz"):
                yield from source_files(package, file.read())
            elif member.name.endswith((*PROSE_SUFFIXES, *CODE_SUFFIXES)):
                text = plain(file.read(), member.name)
                if text:
                    yield package, member.name, text
    unpack.wait()


def source_files(package: str, archive: bytes) -> Iterator[tuple[str, str, str]]:
    """C files of an archive of sources: the kernel's core, memory, file systems, network and library."""
    wanted = re.compile(r"^[^/]+/(kernel|fs|net|mm|lib|sound)/.*\.[ch]$")
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|xz") as tar:
        for member in tar:
            if member.isfile() and wanted.match(member.name):
                file = tar.extractfile(member)
                assert file is not None
                text = plain(file.read(), member.name)
                if text:
                    yield package, member.name, text


def machine_files() -> Iterator[tuple[str, str, str]]:
    """(source, path, text) of the documentation and Python files of this machine."""
    folders = {
        "usr-share-doc": Path("/usr/share/doc"),
        "stdlib": Path(sysconfig.get_path("stdlib")),
        "site-packages": Path(sysconfig.get_path("purelib")),
    }
    for source, folder in folders.items():
        suffixes = PROSE_SUFFIXES if source == "usr-share-doc" else (".py", ".rst", ".md")
        for path in sorted(folder.rglob("*")):
            name = str(path)
            if not name.endswith(suffixes) or path.is_symlink() or not path.is_file():
                continue
            if source == "stdlib" and "-packages" in name:
                continue
            text = plain(path.read_bytes(), name)
            if text:
                yield source, str(path.relative_to(folder)), text


def draw(budget: int, rng: random.Random) -> list[dict[str, str]]:
    """Distinct documents up to `budget` bytes: 45 % prose, the rest code, drawn by the seed."""
    pools: dict[str, list[dict[str, str]]] = {"prose": [], "code": []}
    seen: set[bytes] = set()
    for files in (*map(debian_files, PACKAGES), machine_files()):
        for source, path, text in files:
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if key in seen:
                continue
            seen.add(key)
            domain = "code" if path.endswith(CODE_SUFFIXES) else "prose"
            pools[domain].append({"id": f"{source}/{path}", "source": source, "domain": domain, "text": text})
    print(
        "corpus_set: found", {name: f"{sum(len(d['text']) for d in pool) / 1e6:.0f} MB" for name, pool in pools.items()}
    )
    out: list[dict[str, str]] = []
    left = budget
    for domain, share in (("prose", 0.45), ("code", 1.0)):
        pool = sorted(pools[domain], key=lambda d: d["id"])
        rng.shuffle(pool)
        part = int(left * share)
        for document in pool:
            size = len(document["text"].encode())
            if size <= part:
                part -= size
                left -= size
                out.append(document)
    return out


def edited(words: list[str], share: float, kind: str, rng: random.Random, spare: list[str]) -> list[str]:
    """Words with `share` of them substituted, followed by an insertion, or left out."""
    out: list[str] = []
    for word in words:
        if rng.random() >= share:
            out.append(word)
            continue
        action = rng.choice(("words", "insert", "delete")) if kind == "edit" else kind
        if action == "words":
            out.append(rng.choice(spare))
        elif action == "insert":
            out += [word, rng.choice(spare)]
    return out


def keep_layout(text: str, share: float, kind: str, rng: random.Random, spare: list[str]) -> str:
    """The same, with the white space between the words as it was."""
    pieces = re.split(r"(\s+)", text)
    for i in range(0, len(pieces), 2):
        if pieces[i] and rng.random() < share:
            pieces[i] = " ".join(edited([pieces[i]], 1.0, kind, rng, spare))
    return "".join(pieces)


def near_copy(text: str, kind: str, rng: random.Random, spare: list[str]) -> str:
    """A changed copy of a document, in one of the ways of KINDS."""
    if kind.startswith("words"):
        return keep_layout(text, float(kind.split()[1][:-1]) / 100, "words", rng, spare)
    if kind in ("insert 2%", "delete 2%"):
        return keep_layout(text, 0.02, kind.split()[0], rng, spare)
    if kind == "reorder":
        parts = re.split(r"(?<=\n\n)", text)
        cut = rng.randrange(len(parts))
        return "".join(parts[cut:] + parts[:cut])
    if kind == "rewrap":
        words, lines, line = text.split(), [], ""
        width = rng.choice((60, 100, 140))
        for word in words:
            if len(line) + len(word) > width:
                lines.append(line)
                line = ""
            line += (" " if line else "") + word
        return "\n".join([*lines, line]) + "\n"
    if kind == "boilerplate":
        words = " ".join(rng.choice(spare) for _ in range(max(4, len(text.split()) // 25)))
        return (
            f"Home | Contents | Index\n{words}\n\n{text}\nPage generated {rng.randrange(10**6)}. All rights reserved.\n"
        )
    if kind == "markup":
        lines = text.split("\n")
        return "\n".join(f"<p>{line}</p>" if rng.random() < 0.5 and line.strip() else line for line in lines)
    words = text.split(" ")
    return " ".join(words[: int(len(words) * rng.uniform(0.85, 0.97))]) + "\n"


def plant_near(
    documents: list[dict[str, str]], count: int, rng: random.Random, spare: list[str]
) -> list[dict[str, str]]:
    """Append `count` changed copies to `documents`; the truth about them."""
    fit = [d for d in documents if 120 <= len(d["text"].split()) <= 4000]
    truth = []
    for i, original in enumerate(rng.sample(fit, min(count, len(fit)))):
        kind = KINDS[i % len(KINDS)]
        copy = {
            **original,
            "id": f"near/{i}",
            "source": "planted",
            "text": near_copy(original["text"], kind, rng, spare),
        }
        documents.append(copy)
        truth.append({"copy": copy["id"], "original": original["id"], "kind": kind})
    return truth


def passage(text: str, kind: str, level: float, rng: random.Random, spare: list[str]) -> tuple[str, int, int] | None:
    """A passage of 60 to 200 words out of `text`, as it will stand in the host, and its place in characters."""
    words = list(re.finditer(r"\S+", text))
    size = rng.randint(60, 200)
    if len(words) < 2 * size:
        return None
    first = rng.randrange(len(words) - size)
    start, end = words[first].start(), words[first + size - 1].end()
    if kind in ("words", "insert", "delete", "edit"):
        return keep_layout(text[start:end], level, kind, rng, spare), start, end
    out = edited(text[start:end].split(), level, "edit", rng, spare)
    if kind == "reordered":
        third = len(out) // 3
        out = out[third : 2 * third] + out[:third] + out[2 * third :]
    if kind == "markup":
        out = [f"**{word}**" if rng.random() < 0.1 else f"`{word}`" if rng.random() < 0.1 else word for word in out]
    lines = [" ".join(out[i : i + 12]) for i in range(0, len(out), 12)]
    return "\n".join(lines), start, end


def plant_spans(
    documents: list[dict[str, str]], count: int, rng: random.Random, spare: list[str]
) -> list[dict[str, object]]:
    """Put `count` passages of earlier documents into later ones (a host and a donor serve once); the truth."""
    free = [i for i, d in enumerate(documents) if d["source"] != "planted" and len(d["text"].split()) >= 150]
    rng.shuffle(free)
    truth: list[dict[str, object]] = []
    while len(truth) < count and len(free) > 1:
        donor, host = sorted((free.pop(), free.pop()))
        level, kind = LEVELS[len(truth) % 3], SPAN_KINDS[len(truth) // 3 % len(SPAN_KINDS)]
        found = passage(documents[donor]["text"], kind, level, rng, spare)
        if found is None:
            continue
        piece, donor_start, donor_end = found
        text, source = documents[host]["text"], documents[donor]["text"]
        lines = [m.end() for m in re.finditer(r"\n", text)]
        at = rng.choice(lines)
        documents[host]["text"] = f"{text[:at]}\n{piece}\n\n{text[at:]}"
        start = len(text[:at].encode()) + 1
        truth.append(
            {
                "host": documents[host]["id"],
                "start": start,
                "end": start + len(piece.encode()),
                "donor": documents[donor]["id"],
                "donor_start": len(source[:donor_start].encode()),
                "donor_end": len(source[:donor_end].encode()),
                "level": level,
                "kind": kind,
            }
        )
    return truth


def build(
    megabytes: float = 218.0, out: Path | None = None, near: int = 4000, spans: int = 2000, seed: int = 0
) -> Path:
    """The folder of the set, made where the cache has none of this size yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = out or CACHE / f"set-{FORMAT}-{megabytes:g}-{near}-{spans}-{seed}"
    if (folder / "facts.json").is_file():
        return folder
    rng = random.Random(seed)
    documents = draw(int(megabytes * 0.86e6), rng)  # the planted copies make up the rest
    spare = sorted({word for d in documents[:2000] for word in d["text"].split() if word.isalpha() and len(word) > 4})
    rng.shuffle(documents)
    span_truth = plant_spans(documents, spans, rng, spare)
    near_truth = plant_near(documents, near, rng, spare)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(documents), folder / "texts.parquet", compression="zstd", row_group_size=2000)
    pq.write_table(pa.Table.from_pylist(near_truth), folder / "near.parquet")
    pq.write_table(pa.Table.from_pylist(span_truth), folder / "spans.parquet")
    domains = {
        name: sum(len(d["text"].encode()) for d in documents if d["domain"] == name) for name in ("prose", "code")
    }
    facts = {
        "documents": len(documents),
        "bytes": sum(domains.values()),
        "domains": domains,
        "near": len(near_truth),
        "spans": len(span_truth),
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=218.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = build(args.megabytes, args.out)
    print(folder, (folder / "facts.json").read_text())


if __name__ == "__main__":
    main()
