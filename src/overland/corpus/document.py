"""A document on its way through the corpus, and its row in documents.parquet."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

KEPT, TRIMMED, DROPPED = "kept", "trimmed", "dropped"


@dataclass
class Span:
    """A cut piece of the text that was read: characters [start, end), and the reason."""

    start: int
    end: int
    reason: str


@dataclass
class Document:
    """One text. `path` is relative to its source; `group` is what must stay in one split (the file it came from)."""

    source: str
    path: str
    domain: str  # "code" | "prose"
    language: str  # natural language of prose ("en", "und"), programming language of code
    text: str
    sha256_in: str  # of the file's bytes, so that `sha256sum` finds it
    licence: str = ""
    licence_evidence: str = ""
    decision: str = KEPT
    reason: str = ""
    spans_removed: list[Span] = field(default_factory=list)
    pii_replaced: Counter[str] = field(default_factory=Counter)
    split: str = ""
    tokens: int = 0
    n_bytes: int = 0
    sha256_out: str = ""

    @property
    def id(self) -> str:
        """Stable name: where it came from and what it held."""
        key = "\0".join((self.source, self.path, self.domain, self.sha256_in))
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    @property
    def group(self) -> str:
        return f"{self.source}\0{self.path}"

    @property
    def kept(self) -> bool:
        return self.decision != DROPPED

    def drop(self, reason: str) -> None:
        """Decide against the document; its text is forgotten, its row stays."""
        self.decision, self.reason, self.text = DROPPED, reason, ""

    def row(self) -> dict[str, Any]:
        """The row of documents.parquet."""
        return {
            "id": self.id,
            "source": self.source,
            "path": self.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
            "licence": self.licence,
            "licence_evidence": self.licence_evidence,
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
