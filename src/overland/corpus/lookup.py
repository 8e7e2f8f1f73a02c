"""From a token back to the document it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overland.corpus.personal_vault import reveal
from overland.corpus.shards import Stream
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

    Adds `token_start`, `token_end` (the document's place in the split), `history` (its rows of decisions.parquet) and
    `text` (what its tokens spell); with `key_env`, `personal`: what its placeholders stand for, from vault.parquet.
    Raises UsageError where there is no such token.
    """
    import pyarrow.compute as pc

    from overland.chat import load_tokenizer

    stream = Stream(corpus_dir, split, verify=False)
    if not 0 <= token < len(stream):
        raise UsageError(f"token {token} is not in split '{split}': it holds tokens 0..{len(stream) - 1}")
    ordinal = int(stream.document_at(np.array([token]))[0])
    start, end = int(stream.starts[ordinal]), int(stream.starts[ordinal + 1])
    table = read_documents_table(corpus_dir)
    rows = table.filter(pc.equal(table["id"], stream.ids[ordinal])).to_pylist()
    if len(rows) != 1:
        raise BrokenFileError(
            f"{corpus_dir}/documents.parquet: has {len(rows)} rows for document {stream.ids[ordinal]}"
        )
    row: dict[str, Any] = rows[0]
    row["pii_replaced"] = dict(row["pii_replaced"])
    text = load_tokenizer(Path(corpus_dir) / "tokenizer.json").decode(stream.read(start + 1, end - start - 1).tolist())
    if key_env:
        row["personal"] = reveal(corpus_dir, row["id"], key_env)
    history = [
        {name: value for name, value in decision.items() if name != "id" and value}
        for decision in read_decisions(corpus_dir, row["id"])
    ]
    return {**row, "token_start": start, "token_end": end, "history": history, "text": text}


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
