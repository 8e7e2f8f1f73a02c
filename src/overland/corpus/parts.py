"""Documents between two stages of a build, on disk: Arrow files that appear whole, so that a killed build goes on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from overland import runs
from overland.corpus.document import Document, Event, Span
from overland.errors import BrokenFileError

LAYOUT = 2  # of these files: another finds nothing of a build that was stopped
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
            ("row", pa.int32()),
            ("sealed", pa.binary()),
            ("sample", pa.string()),
            ("sha256", pa.string()),  # of the text
            ("text", pa.large_binary()),
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


def part_table(documents: list[Document], entries: list[int] | None = None) -> Any:
    """Documents with their texts as one Arrow table. `entries`: for each, which entry of its task it came from."""
    import pyarrow as pa

    schema = _part_schema()
    more = [
        pa.array([d.path.encode("utf-8", "surrogateescape") for d in documents], pa.binary()),
        _lists([d.events for d in documents], schema.field("events").type),
        pa.array(entries if entries is not None else [0] * len(documents), pa.int32()),
        pa.array([-1] * len(documents), pa.int32()),
        pa.array([d.sealed for d in documents], pa.binary()),
        pa.array([d.sample for d in documents], pa.string()),
        pa.array([d.sha256 for d in documents], pa.string()),
        pa.array([d.utf8 for d in documents], pa.large_binary()),
    ]
    return pa.table([*documents_table(documents).columns, *more], schema=schema)


def decided_table(read: Any, rows: list[int], documents: list[Document], texts: list[bytes]) -> Any:
    """The table of documents that were decided over since they were read: `read` with what the decisions changed.

    `rows`: the row of `read` that each document has, -1 for one that was never read; `texts`: what each held when it
    was read. Documents hold the new events only. A text stands in the new table only where it is not what it was.
    """
    import pyarrow as pa

    known = [at for at, row in enumerate(rows) if row >= 0]
    strangers = part_table([documents[at] for at, row in enumerate(rows) if row < 0])
    if not known:
        return strangers
    taken = [rows[at] for at in known]
    table = read if taken == list(range(read.num_rows)) else read.take(pa.array(taken))
    mine = [documents[at] for at in known]
    utf8 = [d.utf8 if d.kept and d.utf8 is not texts[at] else None for at, d in zip(known, mine, strict=True)]
    table = replaced(
        table,
        decision=[d.decision for d in mine],
        reason=[d.reason for d in mine],
        spans_removed=_lists([d.spans_removed for d in mine], table.schema.field("spans_removed").type),
        events=_appended(table["events"], [d.events for d in mine]),
        sha256=[d.sha256 for d in mine],
        text=utf8,
        row=taken,
    )
    if len(known) == len(rows):
        return table
    order = np.argsort([at for at, row in enumerate(rows) if row >= 0] + [at for at, row in enumerate(rows) if row < 0])
    return pa.concat_tables([table, strangers]).take(pa.array(order))


def replaced(table: Any, **columns: Any) -> Any:
    """The table with these columns (lists or Arrow arrays) in place of its own."""
    import pyarrow as pa

    for name, column in columns.items():
        field = table.schema.field(name)
        array = column if isinstance(column, pa.Array) else pa.array(column, field.type)
        table = table.set_column(table.schema.get_field_index(name), field, array)
    return table


def with_events(table: Any, added: list[list[Event]]) -> Any:
    """The table with further events of each document."""
    return replaced(table, events=_appended(table["events"], added))


def _appended(column: Any, added: list[list[Event]]) -> Any:
    """A column of events with further ones at the end of each document's."""
    import pyarrow as pa

    lists = column.combine_chunks()
    more = _lists(added, lists.type)
    counts, more_counts = lists.value_lengths().to_numpy(), more.value_lengths().to_numpy()
    old, new = lists.flatten(), more.values
    ends = np.repeat(np.cumsum(counts), more_counts)
    order = np.insert(np.arange(len(old)), ends, len(old) + np.arange(len(new)))
    offsets = np.concatenate([[0], np.cumsum(counts + more_counts)])
    values = pa.concat_arrays([old, new]).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, lists.type)


def write_part(path: Path, documents: list[Document], entries: list[int] | None = None) -> None:
    """Write documents with their texts, atomically."""
    write_table(path, part_table(documents, entries))


def write_table(path: Path, table: Any) -> None:
    """Write a part's table, atomically."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:  # not compressed: a text lies in one part only, and is mapped
        writer.write_table(table)
    runs.atomic_write(path, sink.getvalue())


def read_table(path: Path, columns: Sequence[str] = ()) -> Any:
    """What was written, or some columns of it. Raises BrokenFileError naming the file."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path), "rb") as file:
            places = [_part_schema().get_field_index(name) for name in columns] or None
            return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=places)).read_all()
    except (OSError, pa.ArrowException) as error:
        raise BrokenFileError(f"{path}: cannot be read ({error}); delete its folder and build again") from error


def documents_of(table: Any, *, history: bool = True) -> list[Document]:
    """The documents of a part's table; without `history` their events and counts so far stay behind."""
    left = () if history else ("events", "pii_replaced")
    columns = {name: table[name].to_pylist() for name in _DOCUMENT if name not in ("spans_removed", *left)}
    columns["spans_removed"] = _from_lists(table["spans_removed"], Span)
    if history:
        columns["events"] = _from_lists(table["events"], Event)
        columns["pii_replaced"] = [Counter(dict(items)) for items in columns["pii_replaced"]]
    else:
        columns["events"] = [[] for _ in range(table.num_rows)]
        columns["pii_replaced"] = [Counter() for _ in range(table.num_rows)]
    columns["raw_path"] = [path.decode("utf-8", "surrogateescape") for path in columns["raw_path"]]
    documents = [Document(*values) for values in zip(*(columns[name] for name in _DOCUMENT), strict=True)]
    more = table["sample"].to_pylist(), table["sha256"].to_pylist()
    for document, sample, sha256 in zip(documents, *more, strict=True):
        document.sample = sample
        document.set_text(document.utf8, sha256)
    return documents


def decisions_of(table: Any) -> Any:
    """Rows of decisions.parquet out of a part's table."""
    import pyarrow as pa

    lists = table["events"].combine_chunks()
    ids = table["id"].combine_chunks().take(lists.value_parent_indices())
    return pa.table([ids, *lists.flatten().flatten()], schema=decisions_schema())
