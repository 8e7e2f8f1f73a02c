"""Token shards on disk: `shards/SPLIT-NNNN.bin` of little-endian uint16, and `index.json` that describes them.

A split is one long stream: [EOS] document [EOS] document ... The [EOS] belongs to the document that follows it, so
every document is entered from [EOS] and every last token has [EOS] to predict. A document never spans two shards.

index.json: {"format", "vocab_size", "eos", "dtype", "splits": {SPLIT: {"tokens", "text_bytes", "documents", "shards":
[{"file", "tokens", "bytes", "sha256", "text_bytes", "documents": [[id, start, end, text bytes], ...]}]}}}; start and
end count tokens inside the shard, and the [EOS] stands at start.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland import runs
from overland.errors import BrokenFileError, UsageError

DTYPE = np.dtype("<u2")
FORMAT = 1


@dataclass
class ShardWriter:
    """Writes one split. `add` documents in order, then `close`."""

    folder: Path
    split: str
    eos: int
    shard_tokens: int
    shards: list[dict[str, Any]] = field(default_factory=list)
    _pieces: list[NDArray[np.uint16]] = field(default_factory=list)
    _documents: list[list[Any]] = field(default_factory=list)
    _tokens: int = 0

    def add(self, document_id: str, ids: list[int], text_bytes: int) -> None:
        """Append one document; its [EOS] is put in front here."""
        piece = np.empty(len(ids) + 1, dtype=DTYPE)
        piece[0] = self.eos
        piece[1:] = ids
        self._documents.append([document_id, self._tokens, self._tokens + len(piece), text_bytes])
        self._pieces.append(piece)
        self._tokens += len(piece)
        if self._tokens >= self.shard_tokens:
            self._flush()

    def _flush(self) -> None:
        if not self._pieces:
            return
        name = f"{self.split}-{len(self.shards):04d}.bin"
        data = np.concatenate(self._pieces).tobytes()
        with open(self.folder / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.shards.append(
            {
                "file": f"shards/{name}",
                "tokens": self._tokens,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "text_bytes": sum(entry[3] for entry in self._documents),
                "documents": self._documents,
            }
        )
        self._pieces, self._documents, self._tokens = [], [], 0

    def close(self) -> dict[str, Any]:
        """Write what is left; the split's entry for index.json."""
        self._flush()
        return {
            "tokens": sum(shard["tokens"] for shard in self.shards),
            "text_bytes": sum(shard["text_bytes"] for shard in self.shards),
            "documents": sum(len(shard["documents"]) for shard in self.shards),
            "shards": self.shards,
        }


def write_index(folder: Path, index: dict[str, Any]) -> None:
    """Write index.json, atomically; without indentation, because it has a line of figures for every document."""
    runs.atomic_write(folder / "index.json", json.dumps(index, ensure_ascii=False, separators=(",", ":")) + "\n")


def read_index(corpus_dir: str | Path) -> dict[str, Any]:
    """index.json of a corpus. Raises UsageError where there is no corpus, BrokenFileError where it cannot be read."""
    path = Path(corpus_dir) / "index.json"
    if not path.is_file():
        raise UsageError(
            f"{corpus_dir} is not a corpus (no index.json); make one with: overland corpus build --out DIR"
        )
    try:
        index = json.loads(path.read_bytes())
        fits = index["format"] == FORMAT and index["dtype"] == DTYPE.str and isinstance(index["splits"], dict)
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenFileError(f"{path}: is not a readable index ({error}); build the corpus again") from error
    if not fits:
        raise BrokenFileError(
            f"{path}: has format {index['format']} and dtype {index['dtype']}; build the corpus again"
        )
    return dict(index)


def open_shard(corpus_dir: str | Path, shard: dict[str, Any], *, verify: bool = True) -> NDArray[np.uint16]:
    """Memory-map one shard [tokens]. Raises BrokenFileError naming the file where length or sha256 differ."""
    path = Path(corpus_dir) / shard["file"]
    try:
        size = path.stat().st_size
        if size != shard["bytes"] or size != shard["tokens"] * DTYPE.itemsize:
            raise BrokenFileError(f"{path}: has {size} bytes, index.json says {shard['bytes']}; build the corpus again")
        if verify:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != shard["sha256"]:
                raise BrokenFileError(f"{path}: its sha256 is not the one in index.json; build the corpus again")
        return np.memmap(path, dtype=DTYPE, mode="r")
    except OSError as error:
        raise BrokenFileError(f"{path}: cannot be read ({error.strerror}); build the corpus again") from error


class Stream:
    """A split as one array of tokens over its memory-mapped shards, and the documents in it.

    `starts` [documents + 1]: where each document (its [EOS]) begins; the last entry is the length of the stream.
    """

    def __init__(self, corpus_dir: str | Path, split: str, *, verify: bool = True) -> None:
        index = read_index(corpus_dir)
        if split not in index["splits"]:
            raise UsageError(f"{corpus_dir} has no split '{split}'; choose one of: {', '.join(index['splits'])}")
        entry = index["splits"][split]
        self.eos, self.vocab_size = int(index["eos"]), int(index["vocab_size"])
        self.arrays = [open_shard(corpus_dir, shard, verify=verify) for shard in entry["shards"]]
        lengths = [len(array) for array in self.arrays]
        self.bases = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.ids: list[str] = []
        self.text_bytes: list[int] = []
        starts: list[int] = []
        for base, shard in zip(self.bases, entry["shards"], strict=False):
            for document_id, start, _end, n_bytes in shard["documents"]:
                self.ids.append(document_id)
                self.text_bytes.append(n_bytes)
                starts.append(int(base) + start)
        self.starts = np.array([*starts, int(self.bases[-1])], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.bases[-1])

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens [start, start + count), [count]; past the end the stream begins anew."""
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            at = (start + done) % len(self)
            shard = int(np.searchsorted(self.bases, at, side="right")) - 1
            inside = at - int(self.bases[shard])
            piece = self.arrays[shard][inside : inside + count - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
        return out

    def document_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ordinal of the document that holds each position; positions may lie past the end (the next round)."""
        rounds, inside = np.divmod(positions, len(self))
        return np.searchsorted(self.starts, inside, side="right") - 1 + rounds * len(self.ids)
