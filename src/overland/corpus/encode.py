"""Texts to token ids, identical to the Hugging Face tokenizer's and many times faster.

A text is split in `native/pieces.c` as the tokenizer's own pattern splits it; every distinct piece is encoded once, by
the tokenizer's own merges, and remembered. What lies beyond ASCII is asked of the tokenizer. Part of every batch is
encoded again by the tokenizer as a whole text and compared: a disagreement stops the run. A tokenizer with another
pattern, or a machine without a compiler, is served by the tokenizer alone.

Special tokens are never produced: a text that spells one gets the ids of its letters.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland.corpus.bpe import CL100K_PATTERN, K3_PATTERN, PATTERN
from overland.corpus.compiled import Packed, available, library, pointer
from overland.errors import OverlandError

# pattern: (its number in native/pieces.c, digits in one piece)
SPLITS = {
    PATTERN: (0, 1),
    CL100K_PATTERN: (1, 3),
    CL100K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"): (1, 1),  # Qwen's
    K3_PATTERN: (2, 3),
}
BATCH_BYTES = 16_000_000
CHECK_EVERY = 2_000_000  # bytes of text for one text that is encoded twice
CHECK_BYTES = 8_000  # the longest text that is encoded twice

Ids = NDArray[np.uint32]


class Encoder:
    """Encodes texts under a `tokenizers.Tokenizer`, its added tokens left aside.

    `fast` says whether pieces are looked up; `cache_bytes` bounds what is remembered. Raises OverlandError where a
    checked text comes out differently.
    """

    def __init__(self, tokenizer: Any, cache_bytes: int = 256_000_000) -> None:
        from tokenizers import Tokenizer

        config = json.loads(tokenizer.to_str())
        config.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        self.reference = Tokenizer.from_str(json.dumps(config))
        split = SPLITS.get(split_pattern(config) or "")
        self.fast = split is not None and config["normalizer"] in (None, {"type": "NFC"}) and available()
        self.cache_bytes = cache_bytes
        self._unchecked = CHECK_EVERY
        if split is None or not self.fast:
            return
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        self._piece = Tokenizer.from_str(json.dumps({**config, "normalizer": None, "pre_tokenizer": byte_level}))
        self._c = library()
        self._c.pieces_new.restype = ctypes.c_void_p
        self._c.pieces_split.restype = self._c.pieces_count.restype = ctypes.c_int64
        self._state = ctypes.c_void_p(self._c.pieces_new(*split))
        merges = merge_table(config["model"])
        if merges is not None and self._c.pieces_merges(
            self._state, *map(pointer, merges), ctypes.c_int64(len(merges[1]))
        ):
            raise OverlandError("tokenize: out of memory for the table of merges")

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.pieces_free(self._state)

    def encode(self, texts: Packed, separator: int | None = None) -> tuple[Ids, NDArray[np.int64]]:
        """(ids of all texts in a row, how many each has); with `separator` that id stands before every text's ids and
        is counted with it."""
        parts, counts, first = [], [], 0
        while first < len(texts):
            until = int(np.searchsorted(texts.offsets, texts.offsets[first] + BATCH_BYTES, side="right")) - 1
            until = min(max(until, first + 1), len(texts))
            batch = Packed(texts.data, texts.offsets[first : until + 1])
            ids, lengths = (self._look_up if self.fast else self._ask)(batch, separator)
            parts.append(ids)
            counts.append(lengths)
            first = until
        if not parts:
            return np.zeros(0, np.uint32), np.zeros(0, np.int64)
        return np.concatenate(parts), np.concatenate(counts)

    def lists(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, as lists."""
        ids, lengths = self.encode(Packed.of(texts))
        return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(texts) else []

    def _ask(self, texts: Packed, separator: int | None) -> tuple[Ids, NDArray[np.int64]]:
        rows = [_ids(self.reference, [texts.raw(i).decode()])[0] for i in range(len(texts))]
        head = [] if separator is None else [separator]
        flat = [np.array([*head, *row], dtype=np.uint32) for row in rows]
        return np.concatenate(flat), np.array([len(row) for row in flat], dtype=np.int64)

    def _look_up(self, texts: Packed, separator: int | None) -> tuple[Ids, NDArray[np.int64]]:
        n = ctypes.c_int64(len(texts))
        ends, lengths = np.empty(len(texts), dtype=np.int64), np.empty(len(texts), dtype=np.int64)
        limit = ctypes.c_int64(self.cache_bytes)
        where = pointer(texts.data), pointer(texts.offsets)
        unknown = self._c.pieces_split(self._state, *where, n, limit, pointer(ends))
        if unknown < 0:
            raise OverlandError("tokenize: out of memory; lower corpus.scale's batch or cache")
        if unknown:
            self._learn(unknown)
        total = self._c.pieces_count(self._state, pointer(ends), n, pointer(lengths))
        head = 0 if separator is None else 1
        ids = np.empty(total + head * len(texts), dtype=np.uint32)
        sign = ctypes.c_int64(-1 if separator is None else separator)
        self._c.pieces_ids(self._state, pointer(ends), n, sign, pointer(ids))
        lengths += head
        self._check(texts, ids, lengths, head)
        return ids, lengths

    def _learn(self, unknown: int) -> None:
        offsets, kinds = np.empty(unknown + 1, dtype=np.int64), np.empty(unknown, dtype=np.uint8)
        self._c.pieces_unknown(self._state, pointer(offsets), pointer(kinds), None)
        text = np.empty(int(offsets[-1]), dtype=np.uint8)
        self._c.pieces_unknown(self._state, pointer(offsets), pointer(kinds), pointer(text))
        raw = text.tobytes()
        bounds = offsets.tolist()
        pieces = [raw[a:b].decode() for a, b in itertools.pairwise(bounds)]
        found: list[list[int]] = [[]] * unknown
        for kind, tokenizer in enumerate((self._piece, self.reference)):
            rows = np.flatnonzero(kinds == kind).tolist()
            for start in range(0, len(rows), 4096):
                part = rows[start : start + 4096]
                for row, ids in zip(part, _ids(tokenizer, [pieces[i] for i in part]), strict=True):
                    found[row] = ids
        counts = np.array([len(ids) for ids in found], dtype=np.uint32)
        flat = np.fromiter((token for ids in found for token in ids), dtype=np.uint32, count=int(counts.sum()))
        if self._c.pieces_learn(self._state, pointer(counts), pointer(flat), ctypes.c_int64(len(flat))):
            raise OverlandError("tokenize: out of memory; lower corpus.scale's batch or cache")

    def _check(self, texts: Packed, ids: Ids, lengths: NDArray[np.int64], head: int) -> None:
        ends = np.cumsum(lengths)
        for i, size in enumerate(np.diff(texts.offsets).tolist()):
            self._unchecked += size
            if self._unchecked < CHECK_EVERY or size > CHECK_BYTES:
                continue
            self._unchecked = 0
            text = texts.raw(i).decode()
            mine = ids[ends[i] - lengths[i] + head : ends[i]].tolist()
            if mine != _ids(self.reference, [text])[0]:
                raise OverlandError(f"tokenize: ids of a text differ from the tokenizer's own ({text[:60]!r}...)")


def split_pattern(config: dict[str, Any]) -> str | None:
    """The pattern of a tokenizer.json that splits by one pattern and then spells bytes; None for any other kind."""
    before = config.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", [])
    if config["model"]["type"] != "BPE" or config["model"].get("dropout") or len(steps) != 2:
        return None
    split, spell = steps
    plain = spell["type"] == "ByteLevel" and not spell["add_prefix_space"] and not spell["use_regex"]
    if split["type"] != "Split" or split["behavior"] != "Isolated" or split["invert"] or not plain:
        return None
    return split["pattern"].get("Regex")


def merge_table(model: dict[str, Any]) -> tuple[NDArray[np.uint32], ...] | None:
    """(ids of the 256 bytes, left, right and merged ids of each merge in the order of rank) of a byte-level BPE model.

    None where the model does more than merge bytes: then every piece is asked of the tokenizer.
    """
    more = ("ignore_merges", "byte_fallback", "fuse_unk", "continuing_subword_prefix", "end_of_word_suffix")
    vocab: dict[str, int] = model["vocab"]
    spelled = [vocab.get(char) for char in byte_chars()]
    if any(model.get(name) for name in more) or None in spelled:
        return None
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    columns = zip(*((vocab[a], vocab[b], vocab[a + b]) for a, b in pairs), strict=True) if pairs else ((), (), ())
    return tuple(np.array(column, dtype=np.uint32) for column in (spelled, *columns))


def byte_chars() -> list[str]:
    """The character that stands for each byte in byte-level BPE (GPT-2): printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
