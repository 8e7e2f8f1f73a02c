"""From a token back to the document it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overland.corpus.personal_vault import reveal
from overland.corpus.shards import Stream, read_index
from overland.errors import BrokenFileError, UsageError


def read_documents_table(corpus_dir: str | Path) -> Any:
    """documents.parquet as a pyarrow table. Raises BrokenFileError naming it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(corpus_dir) / "documents.parquet"
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise BrokenFileError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from error


def inspect(corpus_dir: str | Path, token: int, split: str = "train", *, key_env: str | None = None) -> dict[str, Any]:
    """The row of documents.parquet for the document that holds token number `token` of a split.

    Adds `token_start`, `token_end` (the document's place in the split), `history` (its rows of decisions.parquet),
    `text` (what its tokens spell) and `before` (how many characters of it come before the token); with `key_env`,
    `personal`: what its placeholders stand for, from vault.parquet. Raises UsageError where there is no such token.
    """
    stream = Stream(corpus_dir, split, verify=False)
    if not 0 <= token < len(stream):
        raise UsageError(f"token {token} is not in split '{split}': it holds tokens 0..{len(stream) - 1}")
    ordinal = int(stream.document_at(np.array([token]))[0])
    return _described(corpus_dir, stream.ids[ordinal], (stream, ordinal), key_env, token)


def inspect_document(corpus_dir: str | Path, document: str, *, key_env: str | None = None) -> list[dict[str, Any]]:
    """The same for a document by its id or its path, dropped ones too (those have no place and no text).

    A path may name several: a module and its docstrings, the same name in two sources. Raises UsageError where there is
    none, naming paths that are like it.
    """
    import difflib

    table = read_documents_table(corpus_dir).select(["id", "path"]).to_pydict()
    ids = [key for key, path in zip(table["id"], table["path"], strict=True) if document in (key, path)]
    if not ids:
        paths = sorted(set(table["path"]))
        near = [path for path in paths if document in path][:3] or difflib.get_close_matches(document, paths, 3)
        hint = f"; there are {', '.join(near)}" if near else ""
        raise UsageError(f"{corpus_dir} has no document with the id or path '{document}'{hint}")
    places: dict[str, tuple[Stream, int]] = {}
    for split in read_index(corpus_dir)["splits"]:
        stream = Stream(corpus_dir, split, verify=False)
        places.update({key: (stream, at) for at, key in enumerate(stream.ids) if key in ids})
    return [_described(corpus_dir, key, places.get(key), key_env) for key in ids]


def _described(
    corpus_dir: str | Path,
    document_id: str,
    place: tuple[Stream, int] | None,
    key_env: str | None,
    token: int | None = None,
) -> dict[str, Any]:
    import pyarrow.compute as pc

    table = read_documents_table(corpus_dir)
    rows = table.filter(pc.equal(table["id"], document_id)).to_pylist()
    if len(rows) != 1:
        raise BrokenFileError(f"{corpus_dir}/documents.parquet: has {len(rows)} rows for document {document_id}")
    row: dict[str, Any] = rows[0]
    row["pii_replaced"] = dict(row["pii_replaced"])
    if key_env:
        row["personal"] = reveal(corpus_dir, document_id, key_env)
    if place:
        stream, ordinal = place
        row |= {"token_start": int(stream.starts[ordinal]), "token_end": int(stream.starts[ordinal + 1])}
    row["history"] = [
        {name: value for name, value in decision.items() if name != "id" and value}
        for decision in read_decisions(corpus_dir, document_id)
    ]
    if place:
        row |= _text_of(corpus_dir, place[0], row["token_start"], row["token_end"], token)
    return row


def _text_of(corpus_dir: str | Path, stream: Stream, start: int, end: int, token: int | None) -> dict[str, Any]:
    from overland.chat import load_tokenizer

    tokenizer = load_tokenizer(Path(corpus_dir) / "tokenizer.json")
    ids = stream.read(start + 1, end - start - 1).tolist()  # the first is [EOS]
    found: dict[str, Any] = {"text": tokenizer.decode(ids)}
    if token is not None:
        found["before"] = len(tokenizer.bytes_of(ids[: max(0, token - start - 1)]).decode("utf-8", "ignore"))
    return found


def read_decisions(corpus_dir: str | Path, document_id: str) -> list[dict[str, Any]]:
    """The rows of decisions.parquet for one document, in the order in which they were taken."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = Path(corpus_dir) / "decisions.parquet"
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, filters=pc.field("id") == document_id).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise BrokenFileError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    return rows
