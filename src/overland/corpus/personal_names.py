"""Names of people and addresses in prose, by an installed spaCy pipeline. Off unless a recipe names one.

A model is wrong often enough on technical text (most of its organisations and many of its persons there are none) that
only persons and places with a house number are taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from overland.corpus.document import Document
from overland.corpus.pii import Hit
from overland.errors import UsageError

_PERSON = frozenset(("PERSON", "PER"))
_PLACE = frozenset(("FAC", "GPE", "LOC"))
_NAME = re.compile(r"[^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){1,4}")
_CHUNK = 50_000  # characters that spaCy takes at a time


def names_in(model: str, documents: Sequence[Document]) -> list[list[Hit]]:
    """The hits of each document; none in code. Raises UsageError where the pipeline is not installed."""
    prose = [at for at, document in enumerate(documents) if document.domain != "code"]
    hits: list[list[Hit]] = [[] for _ in documents]
    pieces = [(at, start) for at in prose for start in range(0, len(documents[at].text), _CHUNK)]
    texts = (documents[at].text[start : start + _CHUNK] for at, start in pieces)
    for (at, start), parsed in zip(pieces, _pipeline(model).pipe(texts, batch_size=64), strict=True):
        hits[at] += [Hit(start + hit.start, start + hit.end, hit.kind) for hit in _entities(parsed)]
    return hits


def _entities(parsed: Any) -> list[Hit]:
    found = []
    for entity in parsed.ents:
        if entity.label_ in _PERSON and _NAME.fullmatch(entity.text):
            found.append(Hit(entity.start_char, entity.end_char, "NAME"))
        elif entity.label_ in _PLACE:
            before = parsed.text[max(0, entity.start_char - 24) : entity.start_char]
            house = re.search(r"\b\d{1,5}[a-z]? $", before)
            if house:
                start = entity.start_char - (len(before) - house.start())
                found.append(Hit(start, entity.end_char, "ADDRESS"))
            elif re.search(r"\d", entity.text):
                found.append(Hit(entity.start_char, entity.end_char, "ADDRESS"))
    return found


@lru_cache(maxsize=2)
def _pipeline(model: str) -> Any:
    try:
        import spacy

        return spacy.load(model, exclude=["lemmatizer", "attribute_ruler", "parser", "senter"])
    except ImportError as error:
        raise UsageError(f"corpus.pii_model = '{model}' needs spaCy: pip install spacy and the pipeline") from error
    except OSError as error:
        raise UsageError(f"corpus.pii_model = '{model}' is not installed; pip install it, or leave it out") from error
