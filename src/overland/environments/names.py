"""Made-up names of two syllables, "zumi" or "kato": a first syllable no word of ours begins with, then a second one.

A name belongs to one split, so a held-out world has no name in common with any training world: that is what makes the
splits disjoint by construction, whatever the seeds. The syllables are shared, so that a small vocabulary spells every
name with two tokens; within a world no two names share a syllable, so that what follows a syllable is never a guess.
"""

from __future__ import annotations

import random

SPLITS = ("train", "held_out")

FIRSTS = tuple(c + v for c in "bgjkvz" for v in "aeiou")
SECONDS = tuple(c + v for c in "dfhlmnprstwx" for v in "aio")
# Words of commands and pages that the syllables would also make, and a few that nobody wants to read.
_TAKEN = frozenset({"data", "goto", "kind", "bra", "bifi"})

MOST = len(FIRSTS)
"""Names in one world, at most."""


def split_of(name: str) -> str:
    """The split that owns a name: one name in four is held out, and every syllable is in both splits."""
    first, second = FIRSTS.index(name[:2]), SECONDS.index(name[2:])
    return "held_out" if (first + second + second // 4) % 4 == 0 else "train"


NAMES: dict[str, tuple[str, ...]] = {
    split: tuple(f + s for f in FIRSTS for s in SECONDS if f + s not in _TAKEN and split_of(f + s) == split)
    for split in SPLITS
}


def draw_codes(rng: random.Random, count: int) -> list[str]:
    """`count` different codes of five consonants: never a name, and nothing that could be guessed."""
    codes: set[str] = set()
    while len(codes) < count:
        codes.add("".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(5)))
    return rng.sample(sorted(codes), count)


def draw_names(rng: random.Random, split: str, count: int) -> list[str]:
    """`count` names of a split, no two with a syllable in common. Raises ValueError above MOST."""
    if count > MOST:
        raise ValueError(f"{count} names without a common syllable: there are {MOST}")
    while True:
        firsts, seconds, drawn = rng.sample(FIRSTS, count), rng.sample(SECONDS, len(SECONDS)), list[str]()
        for first in firsts:
            fitting = next((s for s in seconds if split_of(first + s) == split and first + s not in _TAKEN), None)
            if fitting is None:
                break
            seconds.remove(fitting)
            drawn.append(first + fitting)
        if len(drawn) == count:
            return drawn
