"""What a build did, in figures that a person or a later stage can quote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CorpusReport:
    """The result of `build`. Counts are of documents unless the name says otherwise."""

    path: Path
    seconds: float
    documents: dict[str, int]  # kept, trimmed, dropped
    reasons: dict[str, int]  # why dropped or trimmed, by rule
    stages: dict[str, dict[str, int]]  # stage -> outcome (pass, trim, replace, drop) -> documents
    characters_cut: dict[str, int]  # stage -> characters of the passages that it cut
    domains: dict[str, dict[str, int]]  # domain -> documents, tokens, bytes
    train_tokens: int
    heldout_tokens: int
    train_bytes: int
    heldout_bytes: int
    train_documents: int
    heldout_documents: int
    vocab_size: int
    bytes_per_token: float
    pii_replaced: dict[str, int]
    licences: dict[str, dict[str, Any]]  # bill of materials
    skipped: dict[str, dict[str, int]]  # source -> what was not read -> files

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}

    def lines(self) -> list[str]:
        """A short table in plain text."""
        tokens, n_bytes = self.train_tokens + self.heldout_tokens, self.train_bytes + self.heldout_bytes
        out = [
            f"documents  {self.documents['kept']} kept, {self.documents['trimmed']} trimmed, "
            f"{self.documents['dropped']} dropped",
            f"text       {n_bytes / 1e6:.2f} MB, {tokens} tokens, {self.bytes_per_token:.2f} bytes a token, "
            f"vocabulary {self.vocab_size}",
            f"held out   {self.heldout_documents} documents, {self.heldout_bytes} bytes, {self.heldout_tokens} tokens",
        ]
        dropped = {stage: counts["drop"] for stage, counts in self.stages.items() if counts.get("drop")}
        if dropped:
            said = ", ".join(f"{count} {stage}" for stage, count in sorted(dropped.items(), key=lambda one: -one[1]))
            out.append(f"dropped    {said}")
        if self.characters_cut:
            cut = ", ".join(f"{count} characters as {stage}" for stage, count in self.characters_cut.items())
            out.append(f"cut        {cut}")
        out += [
            f"skipped    {source}: " + ", ".join(f"{count} {what}" for what, count in kinds.items())
            for source, kinds in self.skipped.items()
            if kinds and not source.startswith("python-stdlib-")
        ]
        out += [
            f"licence    {key}: {entry['documents']} documents, {entry['tokens']} tokens"
            + (f", attribution to {', '.join(entry['attribution_owed'])}" if entry["attribution_owed"] else "")
            for key, entry in self.licences.items()
        ]
        if self.pii_replaced:
            out.append("replaced   " + ", ".join(f"{count} {kind}" for kind, count in self.pii_replaced.items()))
        return out
