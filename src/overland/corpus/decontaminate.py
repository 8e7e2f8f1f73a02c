"""Decontamination: passages of evaluation sets found in training texts, by the same means as repeated spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overland.corpus.compiled import Packed
from overland.corpus.dedup_spans import RepeatedSpan, RepeatedSpans
from overland.errors import UsageError


@dataclass(frozen=True)
class Contamination:
    """What a text holds of evaluation items, and the share of its bytes that they make up."""

    spans: tuple[RepeatedSpan, ...]
    share: float


class Decontaminator:
    """Holds evaluation items (id -> text); `check` tells which texts hold them, nearly word for word.

    A passage counts from `min_words` words on, and an item shorter than that where it occurs whole; items of under
    five words cannot be looked for and are listed in `too_short`.
    """

    def __init__(self, items: Mapping[str, str], min_words: int = 13, identity: float = 0.8) -> None:
        if not items:
            raise UsageError("decontamination: no evaluation items; give at least one")
        self.index = RepeatedSpans(min_words, identity, window=4)
        texts = Packed.of(list(items.values()))
        # Items may repeat each other: an unreachable min_words keeps every one of them whole in the index.
        self.index.add(texts, list(items), min_words=2**31 - 1)
        self.too_short = [name for name, text in items.items() if len(text.split()) < 5]

    def check(self, texts: Packed) -> list[Contamination]:
        """What each text holds of the items; spans name the item and the place in it."""
        out = []
        for i, spans in enumerate(self.index.find(texts)):
            size = int(texts.offsets[i + 1] - texts.offsets[i])
            out.append(Contamination(spans, sum(span.end - span.start for span in spans) / max(1, size)))
        return out
