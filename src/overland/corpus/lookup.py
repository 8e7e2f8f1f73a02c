"""From a token back to the document it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

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


def inspect(corpus_dir: str | Path, token: int, split: str = "train") -> dict[str, Any]:
    """The row of documents.parquet for the document that holds token number `token` of a split.

    Adds `token_start`, `token_end` (the document's place in the split) and `text` (what its tokens spell).
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
    return {**row, "token_start": start, "token_end": end, "text": text}
