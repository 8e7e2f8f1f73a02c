"""Documents between two stages of a build, on disk: Arrow files that appear whole, so that a killed build goes on."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from overland import runs
from overland.corpus.document import Document, Event, Span
from overland.errors import BrokenFileError

_TEXT = ("id", "source", "path", "licence", "licence_evidence", "attribution", "url", "domain", "language")
_EVENT = ("stage", "outcome", "rule", "value", "threshold", "detail", "before", "after")


@cache
def documents_schema() -> Any:
    """documents.parquet."""
    import pyarrow as pa

    span = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())])
    return pa.schema(
        [
            *((name, pa.string()) for name in _TEXT),
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


@cache
def decisions_schema() -> Any:
    """decisions.parquet: one row a document and decision, in the order in which they were taken."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("id", *_EVENT[:-2], "sha256_before", "sha256_after")])


@cache
def _part_schema() -> Any:
    import pyarrow as pa

    event = pa.struct([(name, pa.string()) for name in _EVENT])
    return pa.schema(
        [
            *documents_schema(),
            ("raw_path", pa.binary()),
            ("events", pa.list_(event)),
            ("entry", pa.int32()),
            ("sealed", pa.binary()),
            ("sample", pa.string()),
            ("text", pa.large_string()),
        ]
    )


def documents_table(documents: Iterable[Document]) -> Any:
    """Rows of documents.parquet as a pyarrow table."""
    import pyarrow as pa

    rows = [document.row() for document in documents]
    for row in rows:
        row["pii_replaced"] = list(row["pii_replaced"].items())
    schema = documents_schema()
    return pa.table([pa.array([row[f.name] for row in rows], f.type) for f in schema], schema=schema)


def decisions_table(documents: Iterable[Document]) -> Any:
    """Rows of decisions.parquet as a pyarrow table."""
    import pyarrow as pa

    found = [(document.id, event) for document in documents for event in document.events]
    columns = [[key for key, _ in found], *([getattr(event, name) for _, event in found] for name in _EVENT)]
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=decisions_schema())


def write_part(path: Path, documents: list[Document], entries: list[int] | None = None) -> None:
    """Write documents with their texts, atomically. `entries`: for each, which entry of its task it came from."""
    import pyarrow as pa

    table = documents_table(documents)
    schema = _part_schema()
    more = [
        pa.array([d.path.encode("utf-8", "surrogateescape") for d in documents], pa.binary()),
        pa.array([[vars(event) for event in d.events] for d in documents], schema.field("events").type),
        pa.array(entries if entries is not None else [0] * len(documents), pa.int32()),
        pa.array([d.sealed for d in documents], pa.binary()),
        pa.array([d.sample for d in documents], pa.string()),
        pa.array([d.text for d in documents], pa.large_string()),
    ]
    table = pa.table([*table.columns, *more], schema=schema)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    runs.atomic_write(path, sink.getvalue())


def read_part(path: Path) -> tuple[list[Document], list[int]]:
    """What `write_part` wrote. Raises BrokenFileError naming the file."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all()
    except (OSError, pa.ArrowException) as error:
        raise BrokenFileError(f"{path}: cannot be read ({error}); delete its folder and build again") from error
    columns = {name: table[name].to_pylist() for name in table.column_names}
    documents = [_document(row) for row in _rows(columns)]
    return documents, columns["entry"]


def _rows(columns: dict[str, list[Any]]) -> Iterable[dict[str, Any]]:
    names = list(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def _document(row: dict[str, Any]) -> Document:
    return Document(
        row["source"],
        row["raw_path"].decode("utf-8", "surrogateescape"),
        row["domain"],
        row["language"],
        row["text"],
        row["sha256_in"],
        row["licence"],
        row["licence_evidence"],
        row["attribution"],
        row["url"],
        row["decision"],
        row["reason"],
        [Span(**span) for span in row["spans_removed"]],
        Counter(dict(row["pii_replaced"])),
        [Event(**event) for event in row["events"]],
        row["split"],
        row["tokens"],
        row["bytes"],
        row["sha256_out"],
        row["sealed"],
        row["id"],
        sample=row["sample"],
    )
