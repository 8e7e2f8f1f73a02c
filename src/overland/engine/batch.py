"""The rows that decode together, and their joint cache."""

from __future__ import annotations

from collections.abc import Sequence

from overland.engine.request import Generation
from overland.model import Cache

WORTH_A_COPY = 0.75  # finished rows stay until only this share of the batch is live


class Batch:
    """Row i of `cache` holds the prompt of `rows[i]` and all but the last of its ids."""

    def __init__(self) -> None:
        self.rows: list[Generation] = []
        self.cache: Cache | None = None

    def live(self) -> list[int]:
        """The rows that are not done."""
        return [i for i, row in enumerate(self.rows) if not row.done]

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        if not rows:
            self.rows, self.cache = [], None
        elif len(rows) < len(self.rows):
            assert self.cache is not None
            self.cache = self.cache.select(rows)
            self.rows = [self.rows[i] for i in rows]

    def tidy(self, *, at_once: bool = False) -> list[int]:
        """Drop finished rows where that is worth a copy (or at once); returns the rows that are live."""
        live = self.live()  # asked once: rows may be cancelled meanwhile
        if not live or len(live) <= WORTH_A_COPY * len(self.rows) or (at_once and len(live) < len(self.rows)):
            self.keep(live)
            return list(range(len(self.rows)))
        return live

    def add(self, group: Sequence[Generation], cache: Cache) -> None:
        """Add rows with their caches, but for those that are done already."""
        wanted = [i for i, row in enumerate(group) if not row.done]
        if len(wanted) < len(group):
            group, cache = [group[i] for i in wanted], cache.select(wanted)
        if not self.rows:
            self.rows, self.cache = list(group), cache
            return
        self.keep(self.live())
        self.cache = Cache.cat([self.cache, cache]) if self.cache is not None else cache
        self.rows = [*self.rows, *group]

    def take(self, row: Generation) -> Cache:
        """A row's cache on its own; the row leaves the batch."""
        place = next(i for i, one in enumerate(self.rows) if one is row)
        cache = self.copy(place)
        self.keep([i for i in self.live() if i != place])
        return cache

    def copy(self, place: int) -> Cache:
        """A copy of one row's cache."""
        assert self.cache is not None
        return self.cache.select([place])
