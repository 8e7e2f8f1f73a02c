"""Where prompts part from each other: what several of them begin with is worth running once and keeping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two prompts share."""
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


def parting_points(prompts: Iterable[Sequence[int]], shortest: int) -> list[int]:
    """For each prompt, the longest prefix of at least `shortest` ids that it shares with another one (0 if none)."""
    ordered = sorted(enumerate(prompts), key=lambda item: list(item[1]))
    shared = [0] * len(ordered)
    for (i, a), (j, b) in pairwise(ordered):
        n = common_length(a, b)
        if n >= shortest:
            shared[i], shared[j] = max(shared[i], n), max(shared[j], n)
    return shared
