"""Made-up names: two syllables, four or five lower-case letters, thousands of them, shared out between the splits.

A name belongs to one split by its checksum, so a held-out world has no name in common with any training world: that is
what makes the splits disjoint by construction, whatever the seeds.
"""

from __future__ import annotations

import random
from zlib import crc32

SPLITS = ("train", "held_out")

_ONSETS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_CODAS = ("", "n", "l", "r", "s", "m", "k")
# Words of prompts, commands and pages that the syllables above would also make, and a few that nobody wants to read.
# fmt: off
_TAKEN = frozenset({
    "made", "make", "take", "name", "note", "label", "table", "total", "final", "level", "data", "file", "line",
    "lines", "move", "later", "never", "begin", "tutor", "baker", "miner", "potter", "tailor", "naked", "rapes",
    "penis", "nazis", "files", "give", "given", "five", "site", "notes", "page", "same", "names", "mason",
    "meta", "done", "sales", "some",
})
# fmt: on


def split_of(name: str) -> str:
    """The split that owns a name: one name in four is held out."""
    return "held_out" if crc32(name.encode()) % 4 == 0 else "train"


def _all_names() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    syllables = [c + v for c in _ONSETS for v in _VOWELS]
    for first in syllables:
        for second in syllables:
            if first == second:  # 'baba' gives a copying model nothing to look back for
                continue
            for coda in _CODAS:
                name = first + second + coda
                if name not in _TAKEN:
                    found[split_of(name)].append(name)
    return {split: tuple(names) for split, names in found.items()}


NAMES: dict[str, tuple[str, ...]] = _all_names()


def draw_names(rng: random.Random, split: str, count: int) -> list[str]:
    """`count` different names of a split."""
    return rng.sample(NAMES[split], count)
