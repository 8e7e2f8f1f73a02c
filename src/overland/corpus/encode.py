"""Texts to token ids, identical to the Hugging Face tokenizer's and many times faster.

A text is split in `native/split.c` as the tokenizer's own pattern splits it; every distinct piece is merged once, by
the tokenizer's own table of merges, and remembered. Part of every batch is encoded again by the tokenizer as a whole
text and compared: a disagreement stops the run. A tokenizer of another kind, or a machine without a compiler, is
served by the tokenizer alone.

Special tokens are never produced: a text that spells one gets the ids of its letters.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overland.corpus.bpe import CL100K_PATTERN, K3_PATTERN, PATTERN
from overland.corpus.compiled import Packed, available, library, pointer
from overland.corpus.unicode_classes import unicode_classes
from overland.errors import OverlandError

# pattern: (its number in native/split.h, digits in one piece)
SPLITS = {
    PATTERN: (0, 1),
    CL100K_PATTERN: (1, 3),
    CL100K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"): (1, 1),  # Qwen's
    K3_PATTERN: (2, 3),
}
CHECK_EVERY = 2_000_000  # bytes of text for one text that is encoded twice
CHECK_BYTES = 8_000  # the longest text that is encoded twice
LONGEST_ENTRY = 255  # bytes of an entry that native/pieces.c can hold a piece against
_ROOM = 3  # ids that pieces_encode may write past the last

Ids = NDArray[np.uint32]


class Encoder:
    """Encodes texts under a `tokenizers.Tokenizer`, its added tokens left aside.

    `fast` says whether that is done here; `cache_bytes` bounds what is remembered. Raises OverlandError where a
    checked text comes out differently, or a text is not UTF-8.
    """

    def __init__(self, tokenizer: Any, cache_bytes: int = 256_000_000) -> None:
        from tokenizers import Tokenizer

        config = json.loads(tokenizer.to_str())
        bare: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self.reference = tokenizer
        if {name: config.get(name) for name in bare} != bare:
            config.update(bare)
            self.reference = Tokenizer.from_str(json.dumps(config))
        split = SPLITS.get(split_pattern(config) or "")
        merges = merge_table(config["model"]) if split else None
        self.fast = merges is not None and config["normalizer"] in (None, {"type": "NFC"}) and available()
        self._normalizer = self.reference.normalizer
        self._unchecked = CHECK_EVERY
        if split is None or merges is None or not self.fast:
            return
        self._c = library()
        self._c.pieces_new.restype = ctypes.c_void_p
        self._c.pieces_encode.restype = ctypes.c_int64
        sizes = ctypes.c_int64(len(merges[1])), ctypes.c_int64(cache_bytes)
        self._state = ctypes.c_void_p(
            self._c.pieces_new(*split, pointer(unicode_classes()), *map(pointer, merges), *sizes)
        )
        if not self._state:
            raise OverlandError("tokenize: out of memory for the tables of the tokenizer")
        if config["model"].get("ignore_merges"):
            self._look_whole(config["model"]["vocab"])

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.pieces_free(self._state)

    def encode(self, texts: Packed, separator: int | None = None) -> tuple[Ids, NDArray[np.int64]]:
        """(ids of all texts in a row, how many each has); with `separator` that id stands before every text's ids and
        is counted with it."""
        if not len(texts):
            return np.zeros(0, np.uint32), np.zeros(0, np.int64)
        return (self._encode if self.fast else self._ask)(texts, separator)

    def lists(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, as lists."""
        ids, lengths = self.encode(Packed.of(texts))
        return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(texts) else []

    def _ask(self, texts: Packed, separator: int | None) -> tuple[Ids, NDArray[np.int64]]:
        rows = [_ids(self.reference, _decoded(texts, i)) for i in range(len(texts))]
        head = [] if separator is None else [separator]
        flat = [np.array([*head, *row], dtype=np.uint32) for row in rows]
        return np.concatenate(flat), np.array([len(row) for row in flat], dtype=np.int64)

    def _encode(self, texts: Packed, separator: int | None) -> tuple[Ids, NDArray[np.int64]]:
        given = texts
        if self._normalizer is not None:
            texts = self._normalized(texts)
        # No text has more ids than bytes; pages that are not written to take no memory.
        ids = np.empty(texts.n_bytes + len(texts) + _ROOM, dtype=np.uint32)
        lengths = np.empty(len(texts), dtype=np.int64)
        count, sign = ctypes.c_int64(len(texts)), ctypes.c_int64(-1 if separator is None else separator)
        total = self._c.pieces_encode(
            self._state, pointer(texts.data), pointer(texts.offsets), count, sign, pointer(ids), pointer(lengths)
        )
        if total == -1:
            raise OverlandError("tokenize: out of memory; lower corpus.scale.memory_megabytes")
        if total < 0:
            _decoded(texts, -2 - total)
        ids.resize(total, refcheck=False)
        self._check(given, ids, lengths, 0 if separator is None else 1)
        return ids, lengths

    def _normalized(self, texts: Packed) -> Packed:
        """The texts as the tokenizer's normalizer writes them; ASCII is left as it is."""
        rows = [texts.raw(i) for i in range(len(texts))]
        return Packed.of(
            [
                row if row.isascii() else self._normalizer.normalize_str(_decoded(texts, i)).encode()
                for i, row in enumerate(rows)
            ]
        )

    def _look_whole(self, vocab: dict[str, int]) -> None:
        byte_of = {char: byte for byte, char in enumerate(byte_chars())}
        spelled = {
            bytes(byte_of[char] for char in text): id_ for text, id_ in vocab.items() if set(text) <= set(byte_of)
        }
        entries = Packed.of(list(spelled))
        ids = np.array(list(spelled.values()), dtype=np.uint32)
        if self._c.pieces_whole(
            self._state, pointer(entries.data), pointer(entries.offsets), pointer(ids), ctypes.c_int64(len(ids))
        ):
            raise OverlandError("tokenize: out of memory for the vocabulary")

    def _check(self, texts: Packed, ids: Ids, lengths: NDArray[np.int64], head: int) -> None:
        ends = np.cumsum(lengths)
        for i, size in enumerate(np.diff(texts.offsets).tolist()):
            self._unchecked += size
            if self._unchecked < CHECK_EVERY or size > CHECK_BYTES:
                continue
            self._unchecked = 0
            text = texts.raw(i).decode()
            mine = ids[ends[i] - lengths[i] + head : ends[i]].tolist()
            if mine != _ids(self.reference, text):
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

    None where the model does more than merge bytes, or lacks some.
    """
    vocab: dict[str, int] = model["vocab"]
    spelled = [vocab.get(char) for char in byte_chars()]
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    whole = model.get("ignore_merges") and any(len(entry) > LONGEST_ENTRY for entry in vocab)
    if affixes or whole or None in spelled:
        return None
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    columns = zip(*((vocab[a], vocab[b], vocab[a + b]) for a, b in pairs), strict=True) if pairs else ((), (), ())
    return tuple(np.array(column, dtype=np.uint32) for column in (spelled, *columns))


def byte_chars() -> list[str]:
    """The character that stands for each byte in byte-level BPE (GPT-2): printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _ids(tokenizer: Any, text: str) -> list[int]:
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return list(encoding.ids)


def _decoded(texts: Packed, i: int) -> str:
    try:
        return texts.raw(i).decode()
    except UnicodeDecodeError as error:
        raise OverlandError(f"tokenize: text {i} is not UTF-8 ({error})") from error
