"""A byte-level BPE vocabulary followed by K3's special tokens.

Text never becomes a special token here, whatever it spells: special ids are asked for by name. On disk it is the
ordinary `tokenizer.json` of Hugging Face `tokenizers`.

Source: Kimi K3's tokenizer, where ids of specials follow the BPE ranks in this order (reference: architecture.md 11.2).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from overland.errors import BrokenFileError, UsageError

BOS = "[BOS]"
EOS = "[EOS]"
END_OF_MSG = "<|end_of_msg|>"
OPEN = "<|open|>"
CLOSE = "<|close|>"
SEP = "<|sep|>"
MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END = "<|media_begin|>", "<|media_content|>", "<|media_end|>"
MEDIA_PAD = "<|media_pad|>"  # one for every row of the decoder that a picture takes
PAD = "[PAD]"

SPECIAL_TOKENS = (
    BOS,
    EOS,
    END_OF_MSG,
    OPEN,
    CLOSE,
    SEP,
    MEDIA_BEGIN,
    MEDIA_CONTENT,
    MEDIA_END,
    MEDIA_PAD,
    PAD,
)

# As in K3, decode(skip_special=True) keeps these three, so that a text-level parser still sees the structure.
_STRUCTURE = frozenset((OPEN, CLOSE, SEP))

# Prompts repeat tags, names and system texts endlessly; encodings of short texts are kept, and of a few long ones.
_SHORT, _SHORT_KEPT = 512, 32768
_LONG, _LONG_KEPT = 65536, 64


def _byte_of_char() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 bytes stand for themselves, the others are moved past 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    for shift, byte in enumerate(byte for byte in range(256) if byte not in set(printable)):
        table[chr(256 + shift)] = byte
    return table


class Tokenizer:
    """Text to ids and back. Every special token is reached by name, none through text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wraps a byte-level BPE whose added tokens include SPECIAL_TOKENS. Raises UsageError where they do not."""
        description = json.loads(backend.to_str())
        added = {token["content"]: token for token in description["added_tokens"]}
        missing = [name for name in SPECIAL_TOKENS if name not in added]
        if missing:
            raise UsageError(
                f"tokenizer: special tokens {', '.join(missing)} are missing; make it with build_tokenizer"
            )
        self._json = backend.to_str()
        self._ids = {name: int(token["id"]) for name, token in added.items()}
        self._names = {id_: name for name, id_ in self._ids.items()}
        self._skipped = frozenset(int(token["id"]) for token in added.values() if token["special"])
        self._bytes = _bytes_table(backend, self._names)
        # A copy that has never heard of the specials, nor of truncation or a BOS, encodes all text.
        bare = {**description, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._bpe = tokenizers.Tokenizer.from_str(json.dumps(bare))
        self._short = lru_cache(maxsize=_SHORT_KEPT)(self._encode)
        self._long = lru_cache(maxsize=_LONG_KEPT)(self._encode)
        for name in self._ids:
            if not self._names.keys().isdisjoint(self._encode(name)):
                raise UsageError(f"tokenizer: the text {name!r} encodes to a special id; its merges must not form it")

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._bytes)

    @property
    def text_size(self) -> int:
        """How many ids are ordinary: 0 to here. The special ones follow."""
        return self.vocab_size - len(SPECIAL_TOKENS)

    def encode(self, text: str) -> list[int]:
        """Ordinary text to ids; never a special id. Lone surrogates, which UTF-8 has no bytes for, become '?'."""
        size = len(text)
        if size <= _SHORT:
            return list(self._short(text))
        if size <= _LONG:
            return list(self._long(text))
        return list(self._encode(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return tuple(self._bpe.encode(clean, add_special_tokens=False).ids)

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """The UTF-8 bytes that the ids stand for; a special token stands for its name."""
        table = self._bytes
        return b"".join([table[id_] for id_ in ids])

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of the ids; bytes that are not UTF-8 become U+FFFD.

        skip_special drops markers but keeps <|open|>, <|close|> and <|sep|>, as K3's tokenizer does.
        """
        if skip_special:
            ids = [id_ for id_ in ids if id_ not in self._skipped]
        return self.bytes_of(ids).decode("utf-8", "replace")

    def special(self, name: str) -> int:
        """Id of a special token. Raises UsageError for a name that is none."""
        try:
            return self._ids[name]
        except KeyError:
            raise UsageError(f"tokenizer: {name!r} is no special token; valid: {', '.join(SPECIAL_TOKENS)}") from None

    def special_name(self, id_: int) -> str | None:
        """Name of a special id, None for an ordinary one."""
        return self._names.get(id_)

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json`, atomically: to `path` itself if it ends in .json, else into that folder together
        with the small `tokenizer_config.json` that lets Transformers open the folder."""
        path = Path(path)
        if path.suffix == ".json":
            _write(path, self._json)
            return
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": END_OF_MSG,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
        }
        _write(path / "tokenizer.json", self._json)
        _write(path / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Opens a `tokenizer.json` or a folder that holds one. Raises UsageError or BrokenFileError naming it."""
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise UsageError(f"tokenizer: {file} does not exist; give a model folder or a tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception for anything it cannot read
            raise BrokenFileError(f"{file}: not a readable tokenizer.json ({error})") from None
        return cls(backend)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers get it by value; caches stay behind.
        return (_from_json, (self._json,))


def _from_json(text: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(text))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model folder, or of a tokenizer.json."""
    return Tokenizer.load(path)


def build_tokenizer(bpe: tokenizers.Tokenizer) -> Tokenizer:
    """A trained byte-level BPE plus SPECIAL_TOKENS, whose ids follow its vocabulary in order.

    Raises UsageError where the vocabulary lacks a byte (text would be lost) or already has added tokens.
    """
    description = json.loads(bpe.to_str())
    if description["added_tokens"]:
        raise UsageError("tokenizer: train the BPE without special tokens; build_tokenizer adds them after it")
    vocabulary = bpe.get_vocab(with_added_tokens=False)
    absent = [byte for char, byte in _byte_of_char().items() if char not in vocabulary]
    if absent:
        raise UsageError(
            f"tokenizer: {len(absent)} bytes have no token (first: 0x{min(absent):02x}); "
            "train with initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()"
        )
    first = max(vocabulary.values()) + 1
    description["added_tokens"] = [
        {
            "id": first + offset,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": name not in _STRUCTURE,
        }
        for offset, name in enumerate(SPECIAL_TOKENS)
    ]
    if description.get("decoder") is None:
        description["decoder"] = {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        }
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)))


def _bytes_table(backend: tokenizers.Tokenizer, names: dict[int, str]) -> list[bytes]:
    """Bytes of every id; an id that no token uses has none."""
    alphabet = _byte_of_char()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, id_ in vocabulary.items():
        if id_ in names:
            table[id_] = token.encode("utf-8")
            continue
        try:
            table[id_] = bytes(alphabet[char] for char in token)
        except KeyError as error:
            raise UsageError(f"tokenizer: token {token!r} is not byte-level (character {error})") from None
    return table


def describe_tokens(ids: Iterable[int], tokenizer: Tokenizer) -> list[str]:
    """A string per token for viewers: specials by name, text as it is, bytes of a split character as \\xNN."""
    return [tokenizer.bytes_of([id_]).decode("utf-8", "backslashreplace") for id_ in ids]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
