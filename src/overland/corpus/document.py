"""A document on its way through the corpus: its text, its row in documents.parquet, its rows in decisions.parquet."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from overland.corpus.compiled import characters

KEPT, TRIMMED, DROPPED = "kept", "trimmed", "dropped"
PASS, TRIM, REPLACE, DROP = "pass", "trim", "replace", "drop"


@dataclass(slots=True)
class Span:
    """A cut piece of the text that was read: characters [start, end), and the reason."""

    start: int
    end: int
    reason: str


@dataclass(slots=True)
class Event:
    """One decision over one document: which stage and rule, the value it saw, the threshold it was held against.

    `before` and `after` are SHA-256 of the text around a decision that changed it; both empty where it did not.
    """

    stage: str
    outcome: str
    """pass, trim, replace or drop."""
    rule: str = ""
    value: str = ""
    threshold: str = ""
    detail: str = ""
    before: str = ""
    after: str = ""


@dataclass
class Document:
    """One text. `path` is relative to its source; `group` is what must stay in one split (the file it came from)."""

    source: str
    path: str
    domain: str  # "code" | "prose"
    language: str  # natural language of prose ("en", "und"), programming language of code
    utf8: bytes  # the text; lone surrogates as UTF-8 would spell them
    sha256_in: str  # of the file's (or the record's) bytes, so that `sha256sum` finds a file
    licence: str = ""
    licence_evidence: str = ""
    attribution: str = ""
    """Whom to name, where the source says so."""
    url: str = ""
    decision: str = KEPT
    reason: str = ""
    spans_removed: list[Span] = field(default_factory=list)
    pii_replaced: Counter[str] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    split: str = ""
    tokens: int = 0
    n_bytes: int = 0
    sha256_out: str = ""
    sealed: bytes = b""
    """What its placeholders stand for, under a key that is nowhere kept; empty without one."""
    _id: str = ""
    language_stated: bool = False
    """Whether its source or its record says the language; what was guessed may be found out better."""
    sample: str = ""
    """How a rejected text began, where the recipe asks for samples."""
    _decoded: tuple[bytes, str] = (b"", "")
    _hashed: tuple[bytes, str] = (b"", hashlib.sha256(b"").hexdigest())

    @property
    def text(self) -> str:
        """The text as characters; most stages take its bytes."""
        if self._decoded[0] is not self.utf8:
            self._decoded = self.utf8, self.utf8.decode("utf-8", "surrogatepass")
        return self._decoded[1]

    @property
    def sha256(self) -> str:
        """Of the text as it is now."""
        if self._hashed[0] is not self.utf8:
            self._hashed = self.utf8, hashlib.sha256(self.utf8).hexdigest()
        return self._hashed[1]

    def set_text(self, utf8: bytes, sha256: str) -> None:
        """Take a text whose hash is known."""
        self.utf8, self._hashed = utf8, (utf8, sha256)

    @property
    def n_chars(self) -> int:
        return characters(self.utf8)

    @property
    def id(self) -> str:
        """Stable name: where it came from and what it held."""
        if not self._id:
            key = "\0".join((self.source, self.path, self.domain, self.sha256_in))
            self._id = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self._id

    @property
    def group(self) -> str:
        return f"{self.source}\0{self.path}"

    @property
    def kept(self) -> bool:
        return self.decision != DROPPED

    def note(
        self, stage: str, outcome: str, rule: str = "", value: Any = "", threshold: Any = "", detail: str = ""
    ) -> None:
        """Remember one decision."""
        self.events.append(Event(stage, outcome, rule, _short(value), _short(threshold), detail))

    def change(
        self, stage: str, outcome: str, utf8: bytes, rule: str = "", value: Any = "", threshold: Any = ""
    ) -> None:
        """Put another text in place of this one and remember what did it."""
        event = Event(stage, outcome, rule, _short(value), _short(threshold), "", self.sha256)
        self.utf8 = utf8
        event.after = self.sha256
        self.events.append(event)

    def drop(self, reason: str, stage: str = "", rule: str = "", value: Any = "", threshold: Any = "") -> None:
        """Decide against the document; its text is forgotten, its rows stay."""
        self.decision, self.reason, self.utf8 = DROPPED, reason, b""
        self.note(stage or reason.split(":")[0], DROP, rule, value, threshold, reason)

    def row(self) -> dict[str, Any]:
        """The row of documents.parquet."""
        return {
            "id": self.id,
            "source": self.source,
            "path": self.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
            "licence": self.licence,
            "licence_evidence": self.licence_evidence,
            "attribution": self.attribution,
            "url": self.url,
            "domain": self.domain,
            "language": self.language,
            "decision": self.decision,
            "reason": self.reason,
            "spans_removed": [{"start": s.start, "end": s.end, "reason": s.reason} for s in self.spans_removed],
            "pii_replaced": dict(sorted(self.pii_replaced.items())),
            "split": self.split,
            "tokens": self.tokens,
            "bytes": self.n_bytes,
            "sha256_in": self.sha256_in,
            "sha256_out": self.sha256_out,
        }


def text_hash(text: str) -> str:
    """SHA-256 of a text's UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
