"""Readers of records and remote folders, and what damage does to them. Files are written by others' writers (pyarrow,
gzip, zstandard, fsspec's memory file system) or byte by byte as the WARC specification says."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from overland.corpus import CorpusSection, SourceSection, build, read_documents_table
from overland.corpus.document import Document
from overland.corpus.formats import decompressed, lines
from overland.corpus.reading import read_documents
from overland.corpus.sources import declared_source, text_source
from overland.errors import UsageError

from .conftest import SMALL, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]
RECORDS = [
    {"id": f"r{n}", "text": prose(n), "license": "CC-BY-4.0", "author": "Ada", "url": f"https://example.org/{n}"}
    for n in range(6)
]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def read(source_path: Path | str, max_bytes: int = 10**6, **fields: str) -> list[Document]:
    source = declared_source(SourceSection(name="s", path=str(source_path), **fields))
    return [document for entry in source.files for document in read_documents(source, entry, max_bytes)]


def warc(gz: bool = False) -> bytes:
    """Four responses as WARC 1.1 writes them; with `gz`, a member for each record, as crawlers do."""
    records = []
    for n in range(4):
        kind = "image/png" if n == 2 else "text/html; charset=latin-1"
        page = f"<html><body><main><p>caf\xe9 {prose(n)}</p></main></body></html>".encode("latin-1")
        block = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(page)}\r\n\r\n".encode() + page
        head = (
            f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{n}>\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
            f"WARC-Target-URI: https://example.org/{n}\r\nContent-Type: application/http; msgtype=response\r\n"
            f"Content-Length: {len(block)}\r\n\r\n"
        )
        records.append(head.encode() + block + b"\r\n\r\n")
    return b"".join(map(gzip.compress, records)) if gz else b"".join(records)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_records_bring_their_text_licence_author_and_address(folder: Folder, suffix: str) -> None:
    if suffix == ".parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(RECORDS), sink, row_group_size=2)
        content = sink.getvalue()
    else:
        pack = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstandard.ZstdCompressor().compress}
        content = pack[suffix](JSONL)
    documents = read(folder({f"a{suffix}": content}))
    assert [document.text for document in documents] == [record["text"] for record in RECORDS]
    assert [document.path for document in documents] == [f"a{suffix}#r{n}" for n in range(6)]
    assert {document.licence for document in documents} == {"CC-BY-4.0"}
    assert {document.attribution for document in documents} == {"Ada"}
    assert documents[3].url == "https://example.org/3"


@pytest.mark.parametrize("gz", [False, True])
def test_pages_of_a_web_archive_come_in_their_own_encoding(folder: Folder, gz: bool) -> None:
    documents = read(folder({f"a.warc{'.gz' if gz else ''}": warc(gz)}), licence="CC0-1.0")
    assert [document.reason for document in documents] == ["", "", "not text: image/png", ""]
    assert documents[1].text == f"café {' '.join(prose(1).split())}\n"
    assert documents[1].url == "https://example.org/1"


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.warc.gz", "a.warc", "a.parquet"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.97])
def test_cut_archive_gives_what_is_whole_and_says_that_it_was_cut(folder: Folder, name: str, share: float) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), sink)
    whole = {
        "a.jsonl.gz": gzip.compress(JSONL, 0),
        "a.jsonl.zst": b"".join(zstandard.compress(line + b"\n", 1) for line in JSONL.splitlines()),
        "a.warc.gz": warc(True),
        "a.warc": warc(),
        "a.parquet": sink.getvalue(),
    }[name]
    root = folder({name: whole})
    texts = {document.text for document in read(root, licence="CC-BY-4.0") if document.kept}
    (root / name).write_bytes(whole[: int(len(whole) * share) + 3])
    documents = read(root, licence="CC-BY-4.0")
    assert {document.text for document in documents if document.kept} <= texts
    assert any(document.reason.startswith("truncated") for document in documents)


def test_records_before_a_cut_are_all_kept(folder: Folder) -> None:
    cut = len(b"".join(JSONL.splitlines(keepends=True)[:4])) + 40
    packed = gzip.compress(JSONL, 0)[:cut]
    documents = read(folder({"a.jsonl.gz": packed}))
    assert [document.text for document in documents[:-1]] == [record["text"] for record in RECORDS[:4]]
    assert documents[-1].reason == "truncated: the archive is damaged after line 4 (EOFError)"


def test_lines_that_are_no_record_are_dropped_one_by_one(folder: Folder) -> None:
    content = b'{"text": "a"}\n{"text": 3}\nnot json\n\n\xff\xfe\n{"text": "b\\u0000"}\n[1]\n{"text": "\\ud800"}\n'
    reasons = [document.reason for document in read(folder({"a.jsonl": content}))]
    assert [reason.split(":")[0] for reason in reasons] == [
        "", "no text", "not JSON", "encoding", "binary", "no text", "encoding",
    ]  # fmt: skip


@given(st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")), max_size=8), st.integers(1, 7))
def test_lines_are_those_of_split_except_the_long_ones(parts: list[bytes], piece: int) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(piece)

    whole = b"\n".join(parts)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    found = list(lines(Slow(whole), 10))
    assert [line for _, line in found] == [line if len(line) <= 10 else None for line in expected]
    assert [number for number, _ in found] == list(range(1, len(expected) + 1))


def test_line_larger_than_memory_allows_is_skipped_unheld(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl"
    with open(place, "wb") as file:
        file.write(b'{"text": "before"}\n')
        file.seek(2**29)  # a hole: half a gigabyte of NULs, one line
        file.write(b'\n{"text": "after"}\n')
    script = (
        "import resource, sys\n"
        "from overland.corpus import SourceSection\n"
        "from overland.corpus.reading import read_documents\n"
        "from overland.corpus.sources import declared_source\n"
        "source = declared_source(SourceSection(name='s', path=sys.argv[1]))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for d in read_documents(source, source.files[0], 10**6): print(d.text or d.reason)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 60)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(place)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["before", "too large: its line is over 2.1 MB", "after", "True"]


def test_archive_that_grows_a_thousandfold_is_read_within_bounds(tmp_path: Path) -> None:
    after = json.dumps({"text": "after"}).encode()
    packed = zstandard.compress(b"a" * 200_000_000 + b"\n" + after + b"\n")
    assert len(packed) < 50_000
    stream = decompressed(io.BytesIO(packed), "a.jsonl.zst")
    largest, found = 0, []
    for number, line in lines(stream, 10_000):
        largest = max(largest, len(stream.plain))  # type: ignore[attr-defined]
        found.append((number, line))
    assert found == [(1, None), (2, after)]
    assert largest < 40_000_000


def test_source_that_vanishes_is_dropped_file_by_file(folder: Folder) -> None:
    root = folder({"a.txt": "x", "b.jsonl": JSONL})
    source = text_source(str(root), "text:x", "CC0-1.0")
    for name in ("a.txt", "b.jsonl"):
        (root / name).unlink()
    documents = [document for entry in source.files for document in read_documents(source, entry, 10**6)]
    assert [document.reason for document in documents] == ["unreadable: No such file or directory"] * 2


def test_duplicate_ids_are_dropped_with_the_reason(folder: Folder, tmp_path: Path) -> None:
    twice = [*RECORDS, {**RECORDS[0], "text": prose("other")}]
    root = folder({"a.jsonl": "".join(json.dumps(record) + "\n" for record in twice)})
    build(CorpusSection(text=(str(root),), **SMALL), tmp_path / "out", progress=quiet)
    dropped = [row for row in read_documents_table(tmp_path / "out").to_pylist() if row["decision"] == "dropped"]
    assert [row["reason"] for row in dropped] == ["duplicate id: a.jsonl#r0 was read before"]


def test_remote_folder_is_read_through_fsspec(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/texts/LICENSE", b"CC0 1.0 Universal")
    memory.pipe("/bucket/texts/inner/a.txt", prose("a").encode())
    memory.pipe("/bucket/texts/b.jsonl.gz", gzip.compress(JSONL.replace(b"CC-BY-4.0", b"CC0-1.0")))
    memory.pipe("/bucket/texts/c.png", b"\x89PNG")
    report = build(CorpusSection(text=("memory://bucket/texts",), **SMALL), tmp_path / "out", progress=quiet)
    assert report.documents["kept"] == 7
    assert report.skipped == {"text:texts": {".png": 1}}
    (one,) = read("memory://bucket/texts/inner/a.txt", licence="CC0-1.0")
    assert one.text == prose("a")
    with pytest.raises(UsageError, match="does not exist"):
        read("memory://bucket/nowhere")


def test_budget_and_pieces_do_not_depend_on_memory(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": "SPDX-License-Identifier: CC0-1.0\n\n" + prose(n, 200) for n in range(20)})
    tables = []
    for name, memory in (("a", 100.0), ("b", 2000.0)):
        section = CorpusSection(text=(str(root),), scale={"memory_megabytes": memory}, max_megabytes=0.01, **SMALL)
        build(section, tmp_path / name, progress=quiet)
        tables.append(read_documents_table(tmp_path / name))
    assert tables[0].equals(tables[1])
