"""What each code point is to the patterns of `bpe.py`, as the tokenizer's own regular expressions see it.

Versions of Unicode differ in what is a letter. The table beside this file was read off `tokenizers` itself, and a
sample of it is held against the installed version in every process; where they differ it is read off anew.

    python -m overland.corpus.unicode_classes        writes the table for the installed version
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overland import runs
from overland.corpus.bpe import K3_LOWER, K3_UPPER

TABLE = Path(__file__).with_name("unicode_classes.json")
CODE_POINTS = 0x110000
# Bits as native/split.h has them. SIGN is what none of the first three holds.
CLASSES = {1: r"\p{L}", 2: r"\p{N}", 4: r"\s", 16: r"\p{M}", 32: r"\p{Han}", 64: K3_UPPER, 128: K3_LOWER}
SIGN = 8
_SURROGATES = range(0xD800, 0xE000)
_log = logging.getLogger("overland.corpus")

Classes = NDArray[np.uint8]


@lru_cache
def unicode_classes() -> Classes:
    """The class bits of every code point, [0x110000]."""
    table = stored()
    sample = _sample(table)
    if np.array_equal(ask(sample), table[sample]):
        return table
    _log.warning("tokenizers has another version of Unicode than the table at hand; reading its own (10 s)")
    return derived()


def stored() -> Classes:
    """The table beside this file."""
    runs_of = json.loads(TABLE.read_text())
    starts = np.array([*runs_of["starts"], CODE_POINTS])
    return np.repeat(np.array(runs_of["bits"], dtype=np.uint8), np.diff(starts))


def derived() -> Classes:
    """The table of the installed `tokenizers`: every code point is asked for."""
    table = np.full(CODE_POINTS, SIGN, dtype=np.uint8)
    points = np.array([point for point in range(CODE_POINTS) if point not in _SURROGATES])
    for part in np.array_split(points, 16):
        table[part] = ask(part)
    return table


def ask(points: NDArray[np.int64]) -> Classes:
    """The class bits of these code points (no surrogates), asked of `tokenizers`."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    text = "".join(map(chr, points.tolist()))
    bits = np.zeros(len(points), dtype=np.uint8)
    for bit, pattern in CLASSES.items():
        inside = np.ones(len(points), dtype=bool)
        for _, (start, end) in Split(Regex(f"{pattern}+"), "removed").pre_tokenize_str(text):
            inside[start:end] = False
        bits |= np.where(inside, bit, 0).astype(np.uint8)
    bits[(bits & 7) == 0] |= SIGN
    return bits


def _sample(table: Classes) -> NDArray[np.int64]:
    """Both sides of every border between classes, and one code point of each column that Unicode gives out at once."""
    borders = np.flatnonzero(np.diff(table)) + 1
    grid = np.concatenate([np.arange(0, 0x40000, 16), np.arange(0x40000, CODE_POINTS, 256)])
    points = np.unique(np.concatenate([borders, borders - 1, grid]))
    return points[(points < _SURROGATES.start) | (points >= _SURROGATES.stop)]


def main() -> None:
    import tokenizers

    table = derived()
    starts = [0, *(np.flatnonzero(np.diff(table)) + 1).tolist()]
    found = {"tokenizers": tokenizers.__version__, "starts": starts, "bits": table[starts].tolist()}
    runs.atomic_write(TABLE, json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
