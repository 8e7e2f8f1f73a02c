"""Places that may hold personal data: the compiled pass of `native/personal.c`, and the same rules as expressions.

Offsets are bytes of the UTF-8 text. Without a C compiler the expressions do the work, at a fiftieth of the speed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from overland.corpus.compiled import Packed, available, library, pointer
from overland.errors import OverlandError

EMAIL, NUMBER, IPV4, IPV6, IBAN, TOKEN, SECRET, PEM, MIXED = range(1, 10)


class Place(NamedTuple):
    """Bytes [start, end) of text number `text` may be of a kind."""

    text: int
    start: int
    end: int
    kind: int


def scan(texts: Packed, code: Sequence[bool]) -> list[Place]:
    """The places of each text in order; `code`: whether it is source code."""
    n = len(texts)
    flags = np.ascontiguousarray(code, dtype=np.uint8)
    if not available():
        return [
            Place(at, start, end, kind)
            for at in range(n)
            for start, end, kind in scan_reference(texts.raw(at), bool(flags[at]))
        ]
    run = library().overland_personal
    run.restype = ctypes.c_int64
    room = 4096 + texts.n_bytes // 256
    while True:
        out = np.empty((room, 4), dtype=np.uint32)
        found = run(
            pointer(texts.data), pointer(texts.offsets), ctypes.c_int64(n), pointer(flags), pointer(out),
            ctypes.c_int64(room),
        )  # fmt: skip
        if found < 0:
            raise OverlandError("personal data: the compiled pass failed")
        if found <= room:
            return [Place(*row) for row in out[:found].tolist()]
        room = found


_WORD = re.compile(rb"[A-Za-z0-9_]+|@")
_EMAIL = re.compile(
    rb"(?P<local>[A-Za-z0-9._%+\-]{1,65})@(?P<domain>[A-Za-z0-9][A-Za-z0-9.\-]{0,253}[A-Za-z0-9])(?P<after>.?)",
    re.DOTALL,
)
_NUMBER = re.compile(rb"\d+(?:[ .\-()/]{1,3}\d+)*")
_GROUPS = re.compile(rb"[0-9A-Fa-f:]{1,40}")
_NATIONAL = re.compile(rb"\d{8}[A-Z]|[A-Z]\d{7}[A-Z]|[A-Z]{2}\d{6}[A-Z]|[A-Z]{6}\d\d[A-Z]\d\d[A-Z]\d{3}[A-Z]")
_QUOTED = re.compile(rb"[A-Za-z0-9_+/=\-]{16,256}(?=[\"'])")
_KEYS = re.compile(
    rb"A[KS]IA[A-Za-z0-9_]{16}(?![A-Za-z0-9_])|AIza|gh._[A-Za-z0-9_]{36,}|github_pat_[A-Za-z0-9_]{49,}|glpat-|xox.(?<=\w)-"
    rb"|sk-|[sr]k_live_[A-Za-z0-9_]{20,}|hf_[A-Za-z0-9_]{30,}|eyJ[A-Za-z0-9_]{10,}|npm_[A-Za-z0-9_]{32,}|pypi-AgE",
    re.DOTALL,
)


def scan_reference(raw: bytes, code: bool) -> list[tuple[int, int, int]]:
    """(start, end, kind) of the places of one text: what the compiled pass is held against."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while match := _WORD.search(raw, at):
        a, at = match.span()
        if raw[a : a + 1] == b"@":
            if span := _address(raw, a):
                found.append((*span, EMAIL))
                at = span[1]
            continue
        end, place = _word(raw, a, at, code)
        at = end
        if place:
            found.append(place)
    return found


def _word(raw: bytes, a: int, b: int, code: bool) -> tuple[int, tuple[int, int, int] | None]:
    """Where to go on after the word [a, b), and the place that it opens."""
    word = raw[a:b]
    digits = any(c in b"0123456789" for c in word)
    quoted = _quoted(raw, a)
    if digits and quoted:
        return quoted, (a, quoted, SECRET)
    if not digits:
        if word == b"BEGIN" and raw[a - 5 : a] == b"-----" and raw[b : b + 1] == b" " and a >= 5:
            return b, (a - 5, b, PEM)
        short = len(word) in (2, 4) or len(word) >= 13 or word in (b"glpat", b"pypi")
        if quoted:
            return quoted, (a, quoted, SECRET)
        return b, (a, b, TOKEN) if short and _KEYS.match(raw, a) else None
    if len(word) <= 4 and re.match(rb":[0-9A-Fa-f:]", raw[b : b + 2]) and (run := _GROUPS.match(raw, a)):
        text = run.group()
        pairs = sum(text[i : i + 2] == b"::" for i in range(len(text)))
        good = text.count(b":") >= 2 and (pairs == 1 or text.count(b":") == 7) and run.end() > b
        if good and raw[a - 1 : a] != b":" and not re.match(rb"\w", raw[run.end() : run.end() + 1], re.ASCII):
            return run.end(), (a, run.end(), IPV6)
    if word.isdigit() and len(word) <= 19:
        return _number(raw, a, b, code)
    if b"_" not in word:
        if len(word) >= 4 and word[:2].isalpha() and word[2:4].isdigit():
            spaced = len(word) == 4 and re.match(rb" [A-Za-z0-9]..[A-Za-z0-9]", raw[b : b + 5], re.DOTALL)
            if 15 <= len(word) <= 34 or spaced:
                return b, (a, b, IBAN)
        if not code and _NATIONAL.fullmatch(word):
            return b, (a, b, MIXED)
    return b, (a, b, TOKEN) if len(word) >= 13 and _KEYS.match(raw, a) and word[:1].isalpha() else None


def _number(raw: bytes, a: int, b: int, code: bool) -> tuple[int, tuple[int, int, int] | None]:
    before = raw[a - 1 : a] if a else b" "
    whole = _NUMBER.match(raw, a)
    assert whole is not None
    end = a
    count = 0
    groups: list[bytes] = []
    for group in re.finditer(rb"\d+", whole.group()):
        count += len(group.group())
        groups.append(group.group())
        end = a + group.end()
        if count > 24:
            break
    if before == b"." and a > 1 and raw[a - 2 : a - 1].isdigit():
        return end, None
    after = raw[end : end + 1]
    joined = bool(re.match(rb"[A-Za-z0-9_]", after))
    text = raw[a:end]
    if len(groups) == 4 and re.fullmatch(rb"\d{1,3}(?:\.\d{1,3}){3}", text):
        return end, None if joined or before in (b".", b"-") else (a, end, IPV4)
    if not 7 <= count <= 24 or before == b"." or (joined and after not in (b"x", b"e")):
        return end, None
    widest = max(map(len, groups))
    dots = len(re.findall(rb"(?<=\d)\.(?=\d)", text))
    if code:
        card = 12 <= count <= 19 and (len(groups) == 1 or (len(groups) <= 5 and widest <= 6)) and not dots
        social = len(groups) == 3 and len(text) == 11 and text[3:4] == b"-" and text[6:7] == b"-"
        return end, (a, end, NUMBER) if card or social else None
    date = len(groups) >= 3 and b - a == 4 and raw[a : a + 1] in (b"1", b"2") and raw[b : b + 1] in (b"-", b"/")
    return end, None if date else (a, end, NUMBER)


def _quoted(raw: bytes, a: int) -> int:
    if a == 0 or raw[a - 1 : a] not in (b'"', b"'"):
        return 0
    before = raw[max(0, a - 12) : a - 1]
    if not re.search(rb"[=:] {0,4}$", re.sub(rb"[A-Za-z]$", b"", before)):
        return 0
    match = _QUOTED.match(raw, a)
    if not match or raw[match.end() : match.end() + 1] != raw[a - 1 : a]:
        return 0
    value = match.group()
    return match.end() if re.search(rb"\d", value) and re.search(rb"[A-Za-z]", value) else 0


def _address(raw: bytes, at: int) -> tuple[int, int] | None:
    a = at
    while a > 0 and at - a < 65 and re.match(rb"[A-Za-z0-9._%+\-]", raw[a - 1 : a]):
        a -= 1
    match = _EMAIL.match(raw, a)
    if not match or match.start("domain") != at + 1 or (a > 0 and re.match(rb"[A-Za-z0-9._%+\-/]", raw[a - 1 : a])):
        return None
    local = re.search(rb"[A-Za-z0-9]", match["local"])
    labels = match["domain"].split(b".")
    good = len(labels) > 1 and 2 <= len(labels[-1]) <= 24 and labels[-1].isalpha()
    good = good and all(label and label[:1] != b"-" and label[-1:] != b"-" for label in labels)
    if not local or not good or match["after"] in (b"(", b"-", b"_"):
        return None
    return a + local.start(), match.end("domain")


CODE, LITERAL, INTERPOLATED = 0, 1, 2
_FAMILIES = {"python": 0, **dict.fromkeys(("shell", "ruby", "perl", "r", "julia", "php"), 2)}


def literals(raw: bytes, positions: Sequence[int], language: str) -> list[int] | None:
    """What each position (ascending) of a source file lies in: CODE, LITERAL (a comment or a plain string) or
    INTERPOLATED (a string that may hold code). None without a compiler: nothing is known."""
    if not available():
        return None
    places = np.array(positions, dtype=np.int64)
    out = np.zeros(len(places), dtype=np.uint8)
    data = np.frombuffer(raw, dtype=np.uint8)
    library().overland_literals(
        pointer(data), ctypes.c_int64(len(raw)), pointer(places), ctypes.c_int64(len(places)),
        ctypes.c_int(_FAMILIES.get(language, 1)), pointer(out),
    )  # fmt: skip
    return out.tolist()
