"""Sources behind a real HTTP server: folders and files as its listing shows them, and a connection that breaks."""

from __future__ import annotations

import functools
import gzip
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overland.corpus import CorpusSection, SourceSection, build, read_documents_table
from overland.corpus.reading import read_documents
from overland.corpus.sources import declared_source
from overland.errors import UsageError

from .conftest import SMALL, prose, quiet
from .test_readers import JSONL, RECORDS

pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp, of the extra corpus")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers ranges, as stores do, and breaks off in the middle of what is called broken."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return super().do_GET()
        data = path.read_bytes()
        start, end = 0, len(data)
        asked = self.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        broken = "broken" in path.name
        self.wfile.write(data[start : start + (end - start) // 2] if broken else data[start:end])
        self.close_connection = True
        return None

    def log_message(self, *what: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the URL under which it is served."""
    root = tmp_path / "served"
    (root / "texts" / "inner").mkdir(parents=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield root / "texts", f"http://127.0.0.1:{server.server_address[1]}/texts"
    server.shutdown()
    server.server_close()


def test_folder_behind_a_web_server_is_built_from(served: tuple[Path, str], tmp_path: Path) -> None:
    root, url = served
    (root / "LICENSE").write_text("CC0 1.0 Universal")
    (root / "inner" / "a.txt").write_text(prose("a"))
    (root / "b.jsonl.gz").write_bytes(gzip.compress(JSONL.replace(b"CC-BY-4.0", b"CC0-1.0")))
    table = [
        {**record, "id": f"p{n}", "text": prose(f"p{n}"), "license": "CC0-1.0"} for n, record in enumerate(RECORDS)
    ]
    pq.write_table(pa.Table.from_pylist(table), root / "c.parquet", row_group_size=2)
    build(CorpusSection(text=(url,), **SMALL), tmp_path / "out", progress=quiet)
    rows = read_documents_table(tmp_path / "out").to_pylist()
    kept = {row["path"] for row in rows if row["decision"] == "kept"}
    assert kept == {"inner/a.txt", *(f"b.jsonl.gz#r{n}" for n in range(6)), *(f"c.parquet#p{n}" for n in range(6))}
    assert {row["licence"] for row in rows} == {"CC0-1.0"}


def test_single_file_and_what_breaks_off(served: tuple[Path, str]) -> None:
    root, url = served
    (root / "one.jsonl").write_bytes(JSONL)
    source = declared_source(SourceSection(name="s", path=f"{url}/one.jsonl"))
    documents = [d for entry in source.files for d in read_documents(source, entry, 10**6)]
    assert [d.text for d in documents] == [record["text"] for record in RECORDS]
    (root / "broken.jsonl").write_bytes(JSONL)
    source = declared_source(SourceSection(name="s", path=f"{url}/broken.jsonl"))
    documents = [d for entry in source.files for d in read_documents(source, entry, 10**6)]
    assert documents[-1].decision == "dropped"
    assert documents[-1].reason.startswith(("unreadable", "truncated"))
    (root / "one.jsonl").unlink()
    source = declared_source(SourceSection(name="s", path=f"{url}/broken.jsonl"))
    (root / "broken.jsonl").unlink()
    (document,) = [d for entry in source.files for d in read_documents(source, entry, 10**6)]
    assert document.reason.startswith("unreadable")
    with pytest.raises(UsageError, match=r"does not exist|cannot be read"):
        declared_source(SourceSection(name="s", path=f"{url}/nowhere.jsonl"))
