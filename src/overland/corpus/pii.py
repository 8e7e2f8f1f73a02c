"""Personal data and secrets: found in one compiled pass, decided place by place, and replaced by typed placeholders.

The same value has the same placeholder all over a document: `<EMAIL_1>`, `<PHONE_1>`, `<IP_1>`, `<CARD_1>`, `<IBAN_1>`,
`<ID_1>`, `<KEY_1>`.

In source code phones and most numbers are left alone: digit groups there are almost never somebody's. Python that
parsed before must parse afterwards; where a replacement would break it (`a@b.io` is a matrix product), only strings and
comments are changed.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overland.corpus import personal_kinds as kinds
from overland.corpus.compiled import Packed
from overland.corpus.personal_scan import (
    EMAIL,
    IBAN,
    IPV4,
    IPV6,
    LITERAL,
    MIXED,
    NUMBER,
    PEM,
    SECRET,
    TOKEN,
    Place,
    literals,
    scan,
)  # fmt: skip

KINDS = ("EMAIL", "PHONE", "IP", "CARD", "IBAN", "ID", "KEY")


class Hit(NamedTuple):
    """Characters [start, end) hold one personal datum of one of KINDS (or of a model's: NAME, ADDRESS)."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class Replaced:
    """A text with placeholders, how many of each kind were put in, and what each placeholder stands for."""

    text: str
    counts: Counter[str]
    values: dict[str, str]


def find(text: str, domain: str) -> list[Hit]:
    """All hits in order, without overlaps; a key wins over what is found inside it."""
    return find_all([text], [domain])[0]


def find_all(texts: Sequence[str], domains: Sequence[str]) -> list[list[Hit]]:
    """The hits of each text."""
    found = find_in_bytes(Packed.of(texts), domains)
    return [in_characters(text, hits) for text, hits in zip(texts, found, strict=True)]


def find_in_bytes(packed: Packed, domains: Sequence[str]) -> list[list[Hit]]:
    """The hits of each text, in bytes of its UTF-8."""
    code = [domain == "code" for domain in domains]
    hits: list[list[Hit]] = [[] for _ in domains]
    raws: dict[int, bytes] = {}
    for place in scan(packed, code):
        raw = raws.get(place.text)
        if raw is None:
            raws.clear()  # places come text by text
            raw = raws[place.text] = packed.raw(place.text)
        mine = hits[place.text]
        if mine and place.start < mine[-1].end:
            continue
        if found := _decide(raw, place, code[place.text]):
            kind, start, end = found
            if not mine or start >= mine[-1].end:
                mine.append(Hit(start, end, kind))
    return hits


def _decide(raw: bytes, place: Place, code: bool) -> tuple[str, int, int] | None:
    """(kind, start, end) in bytes, or None where the place holds nobody's data."""
    start, end, kind = place.start, place.end, place.kind
    if kind == EMAIL:
        return ("EMAIL", start, end) if kinds.email(raw, start, end) else None
    if kind == NUMBER:
        return kinds.number(raw, start, end, code)
    if kind == IPV4:
        return ("IP", start, end) if kinds.ipv4(raw, start, end) else None
    if kind == SECRET and kinds.secret(raw, start, end):
        return "KEY", start, end
    if kind == MIXED:
        return ("ID", start, end) if kinds.mixed(raw, start, end) else None
    if kind == IBAN and (stop := kinds.iban(raw, start)):
        return "IBAN", start, stop
    if kind == IPV6 and (stop := kinds.ipv6(raw, start, end)):
        return "IP", start, stop
    if kind == PEM and (stop := kinds.private_key(raw, start)):
        return "KEY", start, stop
    if kind in (TOKEN, SECRET) and (stop := kinds.token(raw, start)):
        return "KEY", start, stop
    return None


def in_characters(text: str, hits: list[Hit]) -> list[Hit]:
    """Hits in bytes of a text's UTF-8 as hits in its characters."""
    if not hits or text.isascii():
        return hits
    raw = text.encode("utf-8", "surrogatepass")
    out, at, chars = [], 0, 0
    for hit in hits:
        chars += len(raw[at : hit.start].decode("utf-8", "surrogatepass"))
        length = len(raw[hit.start : hit.end].decode("utf-8", "surrogatepass"))
        out.append(Hit(chars, chars + length, hit.kind))
        at, chars = hit.end, chars + length
    return out


def replace(text: str, domain: str, language: str = "") -> tuple[str, Counter[str]]:
    """The text with placeholders, and how many occurrences of each kind were replaced."""
    done = replace_all([text], [domain], [language])[0]
    return done.text, done.counts


def replace_all(
    texts: Sequence[str],
    domains: Sequence[str],
    languages: Sequence[str],
) -> list[Replaced]:
    """Each text with placeholders."""
    found = find_all(texts, domains)
    return [
        replace_hits(text, hits, domain, language)
        for text, hits, domain, language in zip(texts, found, domains, languages, strict=True)
    ]


def merged(first: list[Hit], second: Sequence[Hit]) -> list[Hit]:
    """Hits in order without overlaps; one of `first` goes before one of `second`, which a model found."""
    free = [hit for hit in second if not any(hit.start < other.end and other.start < hit.end for other in first)]
    out: list[Hit] = []
    for hit in sorted([*first, *free], key=lambda hit: (hit.start, -hit.end)):
        if not out or hit.start >= out[-1].end:
            out.append(hit)
    return out


def replace_hits(text: str, hits: list[Hit], domain: str, language: str) -> Replaced:
    """The text with placeholders for these hits (in characters, in order, without overlaps)."""
    if not hits:
        return Replaced(text, Counter(), {})
    replaced, values = _write(text, hits)
    if domain == "code" and language == "python":
        plain = _in_literals(text, hits)
        if not all(plain) and parses(text) and not parses(replaced):
            hits = [hit for hit, inside in zip(hits, plain, strict=True) if inside]
            replaced, values = _write(text, hits)
            if not parses(replaced):
                hits, replaced, values = [], text, {}
    return Replaced(replaced, Counter(hit.kind.lower() for hit in hits), values)


def _in_literals(text: str, hits: list[Hit]) -> list[bool]:
    """Which hits of Python source lie within comments and plain strings, where a placeholder breaks nothing."""
    raw = text.encode("utf-8", "surrogatepass")
    places: list[int] = []
    at = chars = 0
    for hit in hits:
        for place in (hit.start, hit.end - 1):
            at += len(text[chars:place].encode("utf-8", "surrogatepass"))
            chars = place
            places.append(at)
    found = literals(raw, places, "python")
    if found is None:
        spans = list(_literal_spans(text))
        return [any(start <= hit.start and hit.end <= end for start, end in spans) for hit in hits]
    return [first == last == LITERAL for first, last in zip(found[::2], found[1::2], strict=True)]


def _write(text: str, hits: list[Hit]) -> tuple[str, dict[str, str]]:
    names: dict[tuple[str, str], str] = {}
    taken = {kind for kind in {hit.kind for hit in hits} if f"<{kind}_" in text}
    values: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    pieces, at = [], 0
    for hit in hits:
        value = text[hit.start : hit.end]
        key = (hit.kind, value.lower() if hit.kind == "EMAIL" else value)
        if key not in names:
            # A placeholder that the text already holds is somebody else's.
            numbers[hit.kind] += 1
            while hit.kind in taken and f"<{hit.kind}_{numbers[hit.kind]}>" in text:
                numbers[hit.kind] += 1
            name = f"<{hit.kind}_{numbers[hit.kind]}>"
            names[key], values[name] = name, value
        pieces += [text[at : hit.start], names[key]]
        at = hit.end
    return "".join(pieces) + text[at:], values


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
