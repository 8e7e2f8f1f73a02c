"""Paragraphs word for word: cut where an earlier text, or an earlier place of the same one, already has them.

White space does not count. The loops are in `native/paragraphs.c`; without a compiler a dictionary does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from overland.corpus.compiled import available, library, pointer
from overland.corpus.dedup_index import read_index, write_index
from overland.errors import OverlandError

PARAGRAPHS = "repeated paragraphs"
_DIGEST = 16  # bytes
_HELD = np.dtype([("digest", "u1", 16), ("domain", "<u4"), ("holder", "<u4"), ("start", "<i8")])

Places = list[tuple[int, int, int, int]]
"""(start, end) in bytes and (start, end) in characters of each paragraph."""


def long_paragraphs(utf8: bytes, min_words: int, only_comments: bool) -> tuple[Places, list[bytes]]:
    """Each run of lines that are not blank, the last newline included, with at least `min_words` words; and its words
    joined by one space. `only_comments`: only those of which every line begins with `#`."""
    if not available():
        return _long_paragraphs(utf8.decode("utf-8", "surrogatepass"), min_words, only_comments)
    room = len(utf8) // (2 * min_words) + 1  # a word and what parts it from the next are two bytes at least
    out, ends = np.empty((room, 4), dtype=np.int64), np.empty(room, dtype=np.int64)
    plain = np.empty(len(utf8) + 1, dtype=np.uint8)
    run = library().overland_paragraphs
    run.restype = ctypes.c_int64
    count = run(
        *(ctypes.c_char_p(utf8), ctypes.c_int64(len(utf8)), ctypes.c_int64(min_words), ctypes.c_int(only_comments)),
        *(pointer(out), pointer(plain), pointer(ends), ctypes.c_int64(room)),
    )
    places: Places = [tuple(row) for row in out[:count].tolist()]
    at, words = 0, []
    for end in ends[:count].tolist():
        words.append(plain[at:end].tobytes())
        at = end
    return places, words


def _long_paragraphs(text: str, min_words: int, only_comments: bool) -> tuple[Places, list[bytes]]:
    places: Places = []
    plain: list[bytes] = []
    at = size = 0
    for start, end in _paragraphs(text):
        words = text[start:end].split()
        if len(words) < min_words or (only_comments and not _only_comments(text[start:end])):
            continue
        begin = size + len(text[at:start].encode("utf-8", "surrogatepass"))
        at, size = end, begin + len(text[start:end].encode("utf-8", "surrogatepass"))
        places.append((begin, size, start, end))
        plain.append(" ".join(words).encode("utf-8", "surrogatepass"))
    return places, plain


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each run of lines that are not blank, the last newline included."""
    start, at = -1, 0
    for line in text.split("\n"):
        if line and not line.isspace():
            start = at if start < 0 else start
        elif start >= 0:
            yield start, at
            start = -1
        at += len(line) + 1
    if start >= 0:
        yield start, len(text)


def _only_comments(paragraph: str) -> bool:
    return all(line.lstrip().startswith("#") for line in paragraph.removesuffix("\n").split("\n"))


class _Holders(Protocol):
    """Which text had a paragraph first."""

    def take(self, digests: bytes, domain: int, text: int, starts: Sequence[int]) -> list[int]:
        """The number of each paragraph's holder; -1 where nobody had it and it is this text's now."""
        ...

    def forget_last(self) -> None: ...

    def rows(self) -> NDArray[np.void]: ...

    def fill(self, rows: NDArray[np.void]) -> None: ...


class RepeatedParagraphs:
    """Feed texts in the order of survival; each loses the paragraphs that came before.

    Memory: 64 to 128 bytes a paragraph (`n_bytes`) and the texts' ids.
    """

    def __init__(self, min_words: int) -> None:
        self.min_words = min_words
        self.ids: list[str] = []
        self.domains: list[str] = []
        self._held: _Holders = _Compiled() if available() else _Plain()

    def cut(self, key: str, utf8: bytes, domain: str) -> tuple[bytes, list[tuple[int, int, str]]]:
        """The text without its repeated paragraphs, and (start, end, key of the first holder) of each cut, in
        characters.

        In code only blocks of comments are cut: taking a statement out would leave a program that does not parse.
        """
        places, plain = long_paragraphs(utf8, self.min_words, domain == "code")
        if domain not in self.domains:
            self.domains.append(domain)
        digests = b"".join(hashlib.blake2b(words, digest_size=_DIGEST).digest() for words in plain)
        starts = [first_char for _, _, first_char, _ in places]
        first = self._held.take(digests, self.domains.index(domain), len(self.ids), starts)
        self.ids.append(key)
        pieces: list[bytes] = []
        cuts: list[tuple[int, int, str]] = []
        at = 0
        for (start, end, first_char, last_char), holder in zip(places, first, strict=True):
            if holder >= 0:
                pieces.append(utf8[at:start])
                at = end
                cuts.append((first_char, last_char, self.ids[holder]))
        return (b"".join((*pieces, utf8[at:])) if cuts else utf8), cuts

    def forget_last(self) -> None:
        """Forget what the last `cut` remembered: its text was dropped, and nothing may be a repeat of it."""
        self._held.forget_last()

    def spill(self, folder: Path) -> None:
        """Move what is remembered into a nameless file in `folder`; called again, take its pages out of memory.

        Raises OverlandError where the disk is full.
        """
        if isinstance(self._held, _Compiled):
            self._held.spill(folder)

    @property
    def n_bytes(self) -> int:
        return self._held.n_bytes if isinstance(self._held, _Compiled) else 0

    def save(self, path: Path) -> None:
        """Write what is remembered to one file, atomically and with checksums."""
        held = self._held.rows()
        domain_of = [self.domains[domain] for domain in held["domain"].tolist()]
        keys = [row.tobytes() + name.encode() for row, name in zip(held["digest"], domain_of, strict=True)]
        held = held[sorted(range(len(held)), key=keys.__getitem__)]
        texts = [self.ids[holder - 1] for holder in held["holder"].tolist()]
        domains = [self.domains[domain] for domain in held["domain"].tolist()]
        ids = {name: at for at, name in enumerate(sorted({*texts, *domains}))}
        arrays = {
            "digest": np.ascontiguousarray(held["digest"]).reshape(-1, _DIGEST),
            "domain": np.array([ids[name] for name in domains], dtype="<u4"),
            "text": np.array([ids[name] for name in texts], dtype="<u4"),
            "start": np.ascontiguousarray(held["start"]),
        }
        write_index(path, PARAGRAPHS, {"digest": "blake2b-128"}, list(ids), arrays)

    @classmethod
    def load(cls, path: Path, min_words: int) -> RepeatedParagraphs:
        """Go on from a saved index. Raises BrokenFileError naming a damaged file."""
        index = cls(min_words)
        index.ids, arrays = read_index(path, PARAGRAPHS, {"digest": "blake2b-128"})
        index.domains = sorted({index.ids[number] for number in arrays["domain"].tolist()})
        rows = np.zeros(len(arrays["digest"]), dtype=_HELD)
        rows["digest"], rows["start"], rows["holder"] = arrays["digest"], arrays["start"], arrays["text"] + 1
        rows["domain"] = [index.domains.index(index.ids[number]) for number in arrays["domain"].tolist()]
        index._held.fill(rows)
        return index


class _Compiled:
    def __init__(self) -> None:
        self._c = library()
        self._c.holders_new.restype = ctypes.c_void_p
        self._c.holders_bytes.restype = self._c.holders_export.restype = ctypes.c_int64
        self._state = ctypes.c_void_p(self._c.holders_new())
        if not self._state:
            raise OverlandError("repeated paragraphs: no memory")

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._c.holders_free(self._state)

    def take(self, digests: bytes, domain: int, text: int, starts: Sequence[int]) -> list[int]:
        n = len(starts)
        where, first = np.array(starts, dtype=np.int64), np.empty(n, dtype=np.int64)
        if self._c.holders_take(
            *(self._state, ctypes.c_char_p(digests), ctypes.c_int64(n), ctypes.c_uint32(domain), ctypes.c_int64(text)),
            *(pointer(where), pointer(first)),
        ):
            raise OverlandError("repeated paragraphs: out of memory; build by parts")
        return first.tolist()

    def forget_last(self) -> None:
        self._c.holders_forget_last(self._state)

    def spill(self, folder: Path) -> None:
        if self._c.holders_spill(self._state, str(folder).encode("utf-8", "surrogateescape")):
            raise OverlandError(f"{folder}: no room on the disk for the duplicate index; free some and go on")

    @property
    def n_bytes(self) -> int:
        return int(self._c.holders_bytes(self._state))

    def rows(self) -> NDArray[np.void]:
        out = np.zeros(self._c.holders_export(self._state, None), dtype=_HELD)
        self._c.holders_export(self._state, pointer(out))
        return out

    def fill(self, rows: NDArray[np.void]) -> None:
        if self._c.holders_import(self._state, ctypes.c_int64(len(rows)), pointer(np.ascontiguousarray(rows))):
            raise OverlandError("repeated paragraphs: an index does not fit in memory")


class _Plain:
    """The same in a dictionary."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._fresh: list[tuple[bytes, int]] = []

    def take(self, digests: bytes, domain: int, text: int, starts: Sequence[int]) -> list[int]:
        self._fresh.clear()
        first = []
        for i, start in enumerate(starts):
            key = digests[_DIGEST * i : _DIGEST * (i + 1)], domain
            held = self._seen.get(key)
            first.append(held[0] if held else -1)
            if held is None:
                self._seen[key] = text, start
                self._fresh.append(key)
        return first

    def forget_last(self) -> None:
        for key in self._fresh:
            del self._seen[key]
        self._fresh.clear()

    def rows(self) -> NDArray[np.void]:
        out = np.zeros(len(self._seen), dtype=_HELD)
        for row, ((digest, domain), (text, start)) in zip(out, self._seen.items(), strict=True):
            row["digest"] = np.frombuffer(digest, dtype=np.uint8)
            row["domain"], row["holder"], row["start"] = domain, text + 1, start
        return out

    def fill(self, rows: NDArray[np.void]) -> None:
        for row in rows:
            self._seen[row["digest"].tobytes(), int(row["domain"])] = int(row["holder"]) - 1, int(row["start"])
