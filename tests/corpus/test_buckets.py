"""Sources in a bucket of a real object store with an S3 interface: OpenStack Swift (tests/serve/swift.py has how)."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from overland.corpus import CorpusSection, SourceSection, build, read_documents_table
from overland.corpus.reading import read_documents
from overland.corpus.sources import declared_source
from overland.errors import UsageError
from tests.serve.swift import KEYS, installed, swift

from .conftest import SMALL, hashes, prose, quiet

pytestmark = pytest.mark.skipif(
    not installed(), reason="OpenStack Swift is not installed (tests/serve/swift.py says how); web servers were tested"
)
BIG = 6_000_000  # bytes of a file that is fetched in several requests


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with swift(tmp_path_factory.mktemp("swift"), "texts") as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store, and the environment that names it."""
    from obstore.store import S3Store

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    return S3Store("texts", client_options={"allow_http": True})


def big_lines() -> bytes:
    lines = (json.dumps({"id": f"b{n}", "text": prose(n, 900)}) for n in range(BIG // 6500))
    return "\n".join(lines).encode()


def test_bucket_is_built_from_by_the_command_as_the_folder_is(bucket: Any, tmp_path: Path) -> None:
    records = [{"id": f"r{n}", "text": prose(f"r{n}"), "license": "CC0-1.0"} for n in range(6)]
    files = {
        "LICENSE": b"CC0 1.0 Universal",
        "inner/a b.txt": prose("a").encode(),
        "inner/ä.txt": prose("ä").encode(),
        "lines.jsonl.gz": gzip.compress("\n".join(map(json.dumps, records)).encode()),
        "lines.jsonl.zst": zstandard.compress(json.dumps({"id": "z", "text": prose("z")}).encode()),
        "empty.txt": b"",
        "picture.png": b"\x89PNG",
    }
    table = pa.BufferOutputStream()
    rows = [{**record, "id": f"p{n}", "text": prose(f"p{n}")} for n, record in enumerate(records)]
    pq.write_table(pa.Table.from_pylist(rows), table, row_group_size=2)
    files["table.parquet"] = table.getvalue().to_pybytes()
    local = tmp_path / "part"
    for name, content in files.items():
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(content)
        bucket.put(f"part/{name}", content)
    # The same name for both, so that all but the root is the same.
    done = subprocess.run(
        [
            *(sys.executable, "-m", "overland", "corpus", "build", "--text", "s3://texts/part"),
            *("--set", "corpus.vocab_size=320", "--set", "corpus.shard_tokens=4096", "--set", "corpus.heldout=0.2"),
            *("--set", "corpus.scale.runner=processes", "--set", "corpus.scale.workers=2", "--out", "remote"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    build(CorpusSection(text=(str(local),), **SMALL), tmp_path / "local", progress=quiet)
    assert hashes(tmp_path / "remote" / "shards") == hashes(tmp_path / "local" / "shards")
    rows = read_documents_table(tmp_path / "remote").to_pylist()
    assert rows == read_documents_table(tmp_path / "local").to_pylist()
    assert len([row for row in rows if row["decision"] == "kept"]) == 15


def test_object_that_vanishes_half_way_is_kept_up_to_there(bucket: Any) -> None:
    bucket.put("gone/one.jsonl", big_lines())
    source = declared_source(SourceSection(name="s", path="s3://texts/gone", licence="CC0-1.0"))
    documents = read_documents(source, source.files[0], 10**6)
    first = next(documents)
    assert first.kept
    bucket.delete("gone/one.jsonl")
    rest = list(documents)
    assert 0 < sum(document.kept for document in rest) < 900
    assert rest[-1].reason.startswith("unreadable: the source vanished after line")
    (document,) = read_documents(source, source.files[0], 10**6)
    assert document.reason.startswith("unreadable")


def test_object_that_is_replaced_half_way_is_named(bucket: Any) -> None:
    bucket.put("new/one.jsonl", big_lines())
    source = declared_source(SourceSection(name="s", path="s3://texts/new", licence="CC0-1.0"))
    documents = read_documents(source, source.files[0], 10**6)
    next(documents)
    bucket.put("new/one.jsonl", big_lines().replace(b"ber", b"BER"))
    assert list(documents)[-1].reason == "unreadable: it was replaced while it was read"


class Cut:
    """A wire to the store that hands on so many bytes of answers and is then cut; `again` is all that comes later."""

    def __init__(self, url: str, after: int, again: bool) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.target, self.left, self.again, self.cuts = (host, int(port)), after, again, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.cuts and not self.again:
                near.close()
                continue
            far = socket.create_connection(self.target)
            threading.Thread(target=self._hand_on, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._hand_on, args=(far, near, True), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if counted and not self.cuts:
                    if len(data) > self.left:
                        target.sendall(data[: self.left])
                        self.cuts += 1
                        break
                    self.left -= len(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # the other thread still reads from it
            end.close()


@pytest.mark.parametrize("again", [True, False])
def test_cut_connection_is_mended_or_named(
    bucket: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    bucket.put(f"cut-{again}/one.jsonl", big_lines())
    wire = Cut(endpoint, 3_500_000, again)
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    source = declared_source(SourceSection(name="s", path=f"s3://texts/cut-{again}", licence="CC0-1.0"))
    documents = list(read_documents(source, source.files[0], 10**6))
    wire.listener.close()
    assert wire.cuts == 1
    texts = [json.loads(line)["text"] for line in big_lines().splitlines()]
    kept = [document.text for document in documents if document.kept]
    assert kept == texts[: len(kept)]
    if again:
        assert len(kept) == len(texts)
    else:
        assert 300 < len(kept) < len(texts)
        assert documents[-1].reason.startswith("unreadable: the source vanished after line")


def test_missing_bucket_key_and_store_are_refused(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("s3://texts/nowhere", "s3://nobucket/part"):
        with pytest.raises(UsageError, match=r"does not exist|cannot be read"):
            declared_source(SourceSection(name="s", path=url))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UsageError, match="cannot be read"):
        declared_source(SourceSection(name="s", path="s3://texts/part"))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(UsageError, match="cannot be read"):
        declared_source(SourceSection(name="s", path="s3://texts/part"))
