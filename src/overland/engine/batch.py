"""The rows that decode together, and their joint cache.

Requests with the same prompt that have said the same so far share one lane of the cache and are computed once; a lane
is copied only when their next tokens differ. A policy that is nearly sure of itself mostly repeats itself: the eight
samples of a group of rollouts are two or three lanes, and which tokens are drawn does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from overland.engine.request import Generation
from overland.model import Cache

WORTH_A_COPY = 0.75  # lanes that nobody uses stay until only this share of the cache is in use


class Batch:
    """Lane `lanes[i]` of `cache` holds the prompt of `rows[i]` and all but the last of its ids."""

    def __init__(self) -> None:
        self.rows: list[Generation] = []
        self.lanes: list[int] = []
        self.cache: Cache | None = None

    def live(self) -> list[int]:
        """The rows that are not done."""
        return [i for i, row in enumerate(self.rows) if not row.done]

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the lanes that only they used."""
        self.rows = [self.rows[i] for i in rows]
        self._to_lanes([self.lanes[i] for i in rows])

    def tidy(self, *, at_once: bool = False) -> bool:
        """Drop finished rows, give every row that has parted from the others of its lane one of its own, and drop
        unused lanes where that is worth a copy (or at once). Returns whether a row is left."""
        live = self.live()  # asked once: rows may be cancelled meanwhile
        self.rows = [self.rows[i] for i in live]
        self.lanes = [self.lanes[i] for i in live]
        paths: dict[tuple[int, int], int] = {}
        for row, lane in zip(self.rows, self.lanes, strict=True):
            paths.setdefault((lane, row.ids[-1]), len(paths))
        used, held = len({lane for lane, _ in paths}), self.cache.rows if self.cache is not None else 0
        if used < len(paths) or used <= WORTH_A_COPY * held or (at_once and used < held):
            of_row = [paths[lane, row.ids[-1]] for row, lane in zip(self.rows, self.lanes, strict=True)]
            self._select([lane for lane, _ in paths])
            self.lanes = of_row
        return bool(self.rows)

    def last_tokens(self) -> list[int]:
        """What each lane reads next; a lane that nobody uses reads anything."""
        last = [0] * (self.cache.rows if self.cache is not None else 0)
        for row, lane in zip(self.rows, self.lanes, strict=True):
            last[lane] = row.ids[-1]
        return last

    def add(self, group: Sequence[Generation], lanes: Sequence[int], cache: Cache) -> None:
        """Add rows, row i in lane `lanes[i]` of `cache`, but for those that are done already."""
        wanted = [i for i, row in enumerate(group) if not row.done]
        if not wanted:
            return
        new = Batch()
        new.rows, new.lanes, new.cache = list(group), list(lanes), cache
        new.keep(wanted)
        assert new.cache is not None
        self.keep(self.live())
        held = self.cache.rows if self.cache is not None else 0
        self.cache = new.cache if self.cache is None else Cache.cat([self.cache, new.cache])
        self.rows += new.rows
        self.lanes += [held + lane for lane in new.lanes]

    def take(self, row: Generation) -> Cache:
        """A row's cache on its own; the row leaves the batch."""
        place = next(i for i, one in enumerate(self.rows) if one is row)
        cache = self.copy(place)
        self.keep([i for i in self.live() if i != place])
        return cache

    def copy(self, place: int) -> Cache:
        """A copy of one row's cache."""
        assert self.cache is not None
        return self.cache.select([self.lanes[place]])

    def _to_lanes(self, lanes: list[int]) -> None:
        """Hold only the lanes that are named, in the order in which they first are."""
        number = {lane: i for i, lane in enumerate(dict.fromkeys(lanes))}
        self._select(list(number))
        self.lanes = [number[lane] for lane in lanes]

    def _select(self, lanes: list[int]) -> None:
        if not lanes:
            self.cache = None
        elif self.cache is not None and lanes != list(range(self.cache.rows)):
            self.cache = self.cache.select(lanes)
