"""Quantise a model folder and say what it cost: the error of each tensor, and held-out loss before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overland.chat import load_tokenizer
from overland.corpus import heldout_documents
from overland.errors import UsageError
from overland.model import load_model
from overland.train import evaluate_bpb
from overland.transform import QuantReport, load_packed, quantize_folder

TOKENS = 20_000  # of held-out text; enough for a difference in the fourth digit, a few seconds for a small model


@dataclass(frozen=True)
class Quantized:
    """The report of the weights, and bits per byte of held-out text; None where there was no text."""

    report: QuantReport
    text: str | None
    before: float | None
    after: float | None

    def to_dict(self) -> dict[str, Any]:
        """The report's figures with `held_out`: bits per byte before and after, and their difference."""
        held_out = None
        if self.before is not None and self.after is not None:
            difference = self.after - self.before
            held_out = {"text": self.text, "before": self.before, "after": self.after, "difference": difference}
        return {**self.report.to_dict(), "held_out": held_out}


def quantize(src: Path, dst: Path, rule: str, targets: Sequence[str], text: Path | None = None) -> Quantized:
    """Write `src` quantised to `dst` and measure both on `text`: a file, a folder of text files, or a corpus folder.

    Without `text` the corpus of the run that `src` lies in is taken, where there is one. The quantised model is
    measured packed, as it would be served. Raises UsageError where there is no text, and what quantize_folder does.
    """
    own = src.absolute().parent / "corpus"
    source = text if text is not None else own if (own / "documents.parquet").is_file() else None
    documents = _documents(source, src) if source is not None else []
    report = quantize_folder(src, dst, rule, targets)
    if not documents:
        return Quantized(report, None, None, None)
    before = evaluate_bpb(load_model(src).eval(), documents)
    after = evaluate_bpb(load_packed(dst), documents)
    return Quantized(report, str(source), before, after)


def _documents(source: Path, src: Path) -> list[tuple[list[int], int]]:
    """Documents (ids, bytes) of about TOKENS tokens in all."""
    if (source / "documents.parquet").is_file():
        found = ((ids.tolist(), size) for ids, size in heldout_documents(source))
    else:
        files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
        if not files:
            raise UsageError(f"--text {source}: there is no text; give a file, a folder or a corpus")
        tokenizer = load_tokenizer(src)
        start = tokenizer.special("[EOS]")  # what the corpus puts before a document
        texts = (file.read_bytes() for file in files)
        found = (([start, *tokenizer.encode(raw.decode("utf-8", "replace"))], len(raw)) for raw in texts if raw)
    chosen: list[tuple[list[int], int]] = []
    for ids, size in found:
        have = sum(len(kept) for kept, _ in chosen)
        if have >= TOKENS:
            break
        if len(ids) > TOKENS - have:  # the rest of a long document would be measured in part: its bytes in proportion
            size, ids = size * (TOKENS - have) // len(ids), ids[: TOKENS - have]
        chosen.append((ids, size))
    return chosen
