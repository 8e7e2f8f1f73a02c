"""Prefix reuse: caches of prompts already run, found again by their ids.

A KDA state cannot be cut back to an earlier token, so a prefix can only be reused where a snapshot was taken: at the
end of a turn, at the end of a prompt, and where waiting or recent prompts part from each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from overland.model import Cache

Key = tuple[str, int]


def prefix_hashes(ids: Sequence[int]) -> list[int]:
    """hashes[n] stands for ids[:n]; equal prefixes have equal hashes on every run."""
    hashes, value = [0], 0
    for token in ids:
        value = hash((value, token))
        hashes.append(value)
    return hashes


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two prompts share."""
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


class PrefixStore:
    """Single-row caches by (salt, hash of the ids they hold), least recently used dropped beyond `capacity_tokens`."""

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._entries: OrderedDict[Key, tuple[list[int], Cache]] = OrderedDict()
        self._lengths: dict[str, dict[int, int]] = {}
        self._tokens = 0

    def longest(self, ids: Sequence[int], salt: str) -> tuple[int, Cache | None]:
        """The longest stored proper prefix of `ids` and its cache (shared: copy before use), or (0, None)."""
        lengths = self._lengths.get(salt)
        if not lengths:
            return 0, None
        hashes = prefix_hashes(ids)
        for n in sorted(lengths, reverse=True):
            if n >= len(ids):
                continue
            key = (salt, hashes[n])
            entry = self._entries.get(key)
            if entry is not None and entry[0] == list(ids[:n]):
                self._entries.move_to_end(key)
                return n, entry[1]
        return 0, None

    def put(self, ids: Sequence[int], cache: Cache, salt: str) -> None:
        """Keep the single-row `cache`, which holds exactly `ids`."""
        if not ids or len(ids) > self.capacity_tokens:
            return
        key = (salt, prefix_hashes(ids)[-1])
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        self._entries[key] = (list(ids), cache)
        lengths = self._lengths.setdefault(salt, {})
        lengths[len(ids)] = lengths.get(len(ids), 0) + 1
        self._tokens += len(ids)
        while self._tokens > self.capacity_tokens:
            (old_salt, _), (old_ids, _) = self._entries.popitem(last=False)
            self._forget(old_salt, len(old_ids))

    def clear(self) -> None:
        """Drop everything (the weights have changed)."""
        self._entries.clear()
        self._lengths.clear()
        self._tokens = 0

    @property
    def tokens(self) -> int:
        """How many tokens the stored prefixes hold."""
        return self._tokens

    def _forget(self, salt: str, length: int) -> None:
        self._tokens -= length
        lengths = self._lengths[salt]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._lengths[salt]


def parting_points(prompts: Iterable[Sequence[int]], shortest: int) -> list[int]:
    """For each prompt, the longest prefix of at least `shortest` ids that it shares with another one (0 if none)."""
    ordered = sorted(enumerate(prompts), key=lambda item: list(item[1]))
    shared = [0] * len(ordered)
    for (i, a), (j, b) in pairwise(ordered):
        n = common_length(a, b)
        if n >= shortest:
            shared[i], shared[j] = max(shared[i], n), max(shared[j], n)
    return shared
