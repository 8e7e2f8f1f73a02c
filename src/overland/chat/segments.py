"""What a template renders to: pieces of text that are encoded one by one.

Only a piece marked special may become a special token. Text of users, tools and models is never marked, so a
message that spells out a marker stays text, and adjacent pieces are never merged before encoding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from overland.chat.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Segment:
    """text: non-empty. special: the text is the name of one special token. trained: an assistant produces it."""

    text: str
    special: bool = False
    trained: bool = False


@dataclass(frozen=True)
class Encoded:
    """Token ids, and for each whether training learns to produce it (same length)."""

    ids: list[int]
    trained: list[bool]


def encode_segments(segments: Iterable[Segment], tokenizer: Tokenizer) -> Encoded:
    """Each segment on its own: a special one to its id, any other to ordinary tokens."""
    ids: list[int] = []
    trained: list[bool] = []
    for segment in segments:
        if segment.special:
            ids.append(tokenizer.special(segment.text))
            trained.append(segment.trained)
        else:
            piece = tokenizer.encode(segment.text)
            ids.extend(piece)
            trained.extend([segment.trained] * len(piece))
    return Encoded(ids, trained)
