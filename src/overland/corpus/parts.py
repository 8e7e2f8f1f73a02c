"""Documents between two stages of a build, on disk: Arrow files that appear whole, so that a killed build goes on."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from overland import runs
from overland.corpus.document import Document, Event, Span
from overland.errors import BrokenFileError

_TEXT = ("id", "source", "path", "licence", "licence_evidence", "attribution", "url", "domain", "language")
# The columns of a part in the order of Document's fields.
_DOCUMENT = (
    *("source", "raw_path", "domain", "language", "text", "sha256_in", "licence", "licence_evidence", "attribution"),
    *("url", "decision", "reason", "spans_removed", "pii_replaced", "events", "split", "tokens", "bytes"),
    *("sha256_out", "sealed", "id"),
)
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

    documents = list(documents)
    schema = documents_schema()
    named = {
        "path": [_shown(document.path) for document in documents],
        "spans_removed": _lists([document.spans_removed for document in documents], schema.field("spans_removed").type),
        "pii_replaced": [sorted(document.pii_replaced.items()) for document in documents],
        "bytes": [document.n_bytes for document in documents],
    }
    arrays = []
    for f in schema:
        column = named.get(f.name)
        if column is None:
            column = [getattr(document, f.name) for document in documents]
        arrays.append(column if isinstance(column, pa.Array) else pa.array(column, f.type))
    return pa.table(arrays, schema=schema)


def _shown(path: str) -> str:
    return path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _lists(items: list[list[Any]], kind: Any) -> Any:
    """A list of objects a document as an Arrow array of lists of structs, by the structs' field names."""
    import pyarrow as pa

    flat = [item for group in items for item in group]
    fields = list(kind.value_type)
    columns = [pa.array([getattr(item, field.name) for item in flat], field.type) for field in fields]
    ends = list(itertools.accumulate((len(group) for group in items), initial=0))
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.StructArray.from_arrays(columns, fields=fields), kind
    )


def _from_lists(column: Any, kind: type[Any]) -> list[list[Any]]:
    """What `_lists` was given: objects of `kind`, whose fields are in the structs' order."""
    lists = column.combine_chunks()
    ends = lists.offsets.to_pylist()
    structs = lists.values
    flat = [kind(*values) for values in zip(*(field.to_pylist() for field in structs.flatten()), strict=True)]
    return [flat[start:end] for start, end in itertools.pairwise(ends)]


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
        _lists([d.events for d in documents], schema.field("events").type),
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
    table = read_table(path)
    return documents_of(table), table["entry"].to_pylist()


def read_table(path: Path) -> Any:
    """The same as one Arrow table. Raises BrokenFileError naming the file."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path), "rb") as file:
            return pa.ipc.open_file(file).read_all()
    except (OSError, pa.ArrowException) as error:
        raise BrokenFileError(f"{path}: cannot be read ({error}); delete its folder and build again") from error


def documents_of(table: Any) -> list[Document]:
    """The documents of a part's table."""
    columns = {name: table[name].to_pylist() for name in _DOCUMENT if name not in ("spans_removed", "events")}
    columns["spans_removed"] = _from_lists(table["spans_removed"], Span)
    columns["events"] = _from_lists(table["events"], Event)
    columns["pii_replaced"] = [Counter(dict(items)) for items in columns["pii_replaced"]]
    columns["raw_path"] = [path.decode("utf-8", "surrogateescape") for path in columns["raw_path"]]
    documents = [Document(*values) for values in zip(*(columns[name] for name in _DOCUMENT), strict=True)]
    for document, sample in zip(documents, table["sample"].to_pylist(), strict=True):
        document.sample = sample
    return documents


def decisions_of(table: Any) -> Any:
    """Rows of decisions.parquet out of a part's table."""
    import pyarrow as pa

    lists = table["events"].combine_chunks()
    ids = table["id"].combine_chunks().take(lists.value_parent_indices())
    return pa.table([ids, *lists.flatten().flatten()], schema=decisions_schema())
