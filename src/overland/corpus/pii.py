"""Personal data and secrets: found by patterns and replaced by typed placeholders, the same one a document for the same
value (`<EMAIL_1>`, `<PHONE_1>`, `<IP_1>`, `<KEY_1>`).

Every pattern is anchored and bounded, so that time is linear in the text. Phones are looked for in prose only, and only
beside a word that says so or in a shape that says so: bare digit groups in code and tables are almost never phones.
Code that parsed before must parse afterwards; where a replacement would break it (`a@b.io` is a matrix product), only
strings and comments are searched.
"""

from __future__ import annotations

import ast
import io
import ipaddress
import math
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+\-/])[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,6}[A-Za-z]{2,24}(?![A-Za-z0-9-]|\.[A-Za-z0-9]|\()"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_VERSION_BEFORE = re.compile(r"(?:version|release|\bv|\bver\.?|section|§|rfc\s?\d*)\W{0,3}$", re.IGNORECASE)
_PHONE_WORD = re.compile(
    r"\b(?:phone|telephone|tel|mobile|cell|fax|desk|office|dial|direct line|reach (?:me|us)|whatsapp|sms"
    r"|call(?:\s+(?:me|us))?(?:\s+(?:at|on))?)\b[\w\s.:#()=\"'-]{0,24}?"
    r"(?P<number>\+?\(?\d[\d ().\-/]{5,20}\d(?:\s?(?:x|ext\.?)\s?\d{1,6})?)(?!\d)",
    re.IGNORECASE,
)
# +49 30 1234567 and the North American 3-3-4 groups stand for themselves.
_PHONE_SHAPE = re.compile(
    r"(?<![\w+.\-/(])(?P<number>(?:(?:\+|00)[1-9]\d{0,2}[ ().\-]{1,2}|\+[1-9])\d[\d ().\-]{5,17}\d(?:x\d{1,6})?"
    r"|(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-.]\d{4}(?:x\d{1,6})?)(?![\w-])"
)
_KEYS = re.compile(
    r"-----BEGIN (?P<kind>[A-Z ]{0,32}PRIVATE KEY)-----\s{0,4}(?:[A-Za-z]+-[A-Za-z]+:[^\n]{1,100}\s{1,4}){0,4}"
    r"[A-Za-z0-9+/=\s\\]{32,16384}-----END (?P=kind)-----"
    r"|(?<![A-Za-z0-9_])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{36,255}"
    r"|(?<![A-Za-z0-9_])github_pat_[A-Za-z0-9_]{50,255}"
    r"|(?<![A-Za-z0-9_])glpat-[A-Za-z0-9_\-]{20,64}"
    r"|(?<![A-Za-z0-9_])xox[abprs]-[A-Za-z0-9-]{10,255}"
    r"|(?<![A-Za-z0-9_])sk-(?:[a-z]{2,10}-)?[A-Za-z0-9_\-]{32,255}"
    r"|(?<![A-Za-z0-9_])[sr]k_live_[A-Za-z0-9]{20,255}"
    r"|(?<![A-Za-z0-9_])AIza[A-Za-z0-9_\-]{35}(?![A-Za-z0-9_\-])"
    r"|(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{30,64}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9_])eyJ[A-Za-z0-9_\-]{10,2048}\.eyJ[A-Za-z0-9_\-]{10,4096}\.[A-Za-z0-9_\-]{10,2048}"
)
_ASSIGNED = re.compile(
    r"(?:api[_-]?key|secret(?:[_-]?key)?|access[_-]?token|auth[_-]?token|token|passw(?:or)?d)[\"']?\s{0,3}[:=]\s{0,3}"
    r"[\"'](?P<value>[A-Za-z0-9+/=_\-]{16,256})[\"']",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Hit:
    """Characters [start, end) hold one personal datum of a kind: EMAIL, PHONE, IP or KEY."""

    start: int
    end: int
    kind: str


def find(text: str, domain: str) -> list[Hit]:
    """All hits in order, without overlaps; a key wins over what is found inside it."""
    hits = [Hit(*match.span(), "KEY") for match in _KEYS.finditer(text)] if _may_hold_keys(text) else []
    hits += [Hit(*m.span("value"), "KEY") for m in _ASSIGNED.finditer(text) if _looks_random(m["value"])]
    if "@" in text:
        hits += [Hit(*match.span(), "EMAIL") for match in _EMAIL.finditer(text)]
    hits += [Hit(*match.span(), "IP") for match in _IPV4.finditer(text) if _is_public(text, match)]
    if domain != "code":
        for pattern in (_PHONE_WORD, _PHONE_SHAPE):
            hits += [Hit(*m.span("number"), "PHONE") for m in pattern.finditer(text) if _is_phone(m["number"])]
    hits.sort(key=lambda hit: (hit.start, -hit.end))
    chosen: list[Hit] = []
    for hit in hits:
        if not chosen or hit.start >= chosen[-1].end:
            chosen.append(hit)
    return chosen


def replace(text: str, domain: str, language: str = "") -> tuple[str, Counter[str]]:
    """The text with placeholders, and how many occurrences of each kind were replaced."""
    hits = find(text, domain)
    if not hits:
        return text, Counter()
    replaced = _write(text, hits)
    if domain == "code" and language == "python" and parses(text) and not parses(replaced):
        inside = list(_literal_spans(text))
        hits = [hit for hit in hits if any(start <= hit.start and hit.end <= end for start, end in inside)]
        replaced = _write(text, hits)
        if not parses(replaced):
            hits, replaced = [], text
    return replaced, Counter(hit.kind.lower() for hit in hits)


def _write(text: str, hits: list[Hit]) -> str:
    names: dict[tuple[str, str], str] = {}
    numbers: Counter[str] = Counter()
    pieces, at = [], 0
    for hit in hits:
        value = text[hit.start : hit.end]
        key = (hit.kind, value.lower() if hit.kind == "EMAIL" else value)
        if key not in names:
            numbers[hit.kind] += 1
            names[key] = f"<{hit.kind}_{numbers[hit.kind]}>"
        pieces += [text[at : hit.start], names[key]]
        at = hit.end
    return "".join(pieces) + text[at:]


def _may_hold_keys(text: str) -> bool:
    marks = ("PRIVATE KEY", "AKIA", "ASIA", "gh", "glpat-", "xox", "sk-", "k_live_", "AIza", "hf_", "eyJ")
    return any(mark in text for mark in marks)


def _looks_random(value: str) -> bool:
    """Letters and digits mixed with over 3 bits a character: a secret, not a name or a placeholder."""
    if not (any(c.isdigit() for c in value) and any(c.isalpha() for c in value)):
        return False
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values()) > 3.0


def _is_public(text: str, match: re.Match[str]) -> bool:
    """A routable host: not private, loopback, reserved or documentation space, and not a version number."""
    try:
        address = ipaddress.IPv4Address(match.group())
    except ValueError:
        return False
    if not address.is_global or address.is_multicast:
        return False
    return _VERSION_BEFORE.search(text, max(0, match.start() - 16), match.start()) is None


def _is_phone(number: str) -> bool:
    digits = sum(c.isdigit() for c in re.split(r"x|ext", number)[0])
    return 7 <= digits <= 15


def parses(text: str) -> bool:
    """Whether Python accepts the text as a module."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _literal_spans(text: str) -> Iterator[tuple[int, int]]:
    """Character spans of the strings and comments of Python source."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds:
                yield starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return
