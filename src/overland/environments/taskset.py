"""A taskset: endless seeded tasks of one domain. Equal (split, level, seed) give equal tasks on every machine."""

from __future__ import annotations

import abc
import random
from collections.abc import Iterator
from typing import ClassVar

from overland.environments.names import SPLITS
from overland.environments.task import Task
from overland.errors import UsageError

LEVELS = (0, 1, 2, 3)
"""The easy levels. In the domains that began with them, a level is the number of its oracle's calls, less one."""

HARD_CALLS = (12, 30)
"""What the oracle of level 4 and of level 5 needs at least."""


class Taskset(abc.ABC):
    """Subclasses name their kinds by level and build one task from a seeded generator."""

    name: ClassVar[str]
    kinds: ClassVar[dict[int, tuple[str, ...]]]
    least_calls: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, *HARD_CALLS)
    """By level: how many calls, all different, the oracle needs at least."""

    runs_commands: ClassVar[bool] = False
    """Whether a policy's episodes need a sandbox."""

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(sorted(self.kinds))

    def levels_within(self, turns: int) -> tuple[int, ...]:
        """The levels that an episode of so many turns has room for: the oracle's calls, one a turn, and the answer.

        The lowest level where it has room for none.
        """
        return tuple(level for level in self.levels if self.least_calls[level] < turns) or self.levels[:1]

    def task(self, split: str, level: int, seed: int, kind: str | None = None) -> Task:
        """The task of a seed. `kind` fixes the kind, which the seed chooses otherwise.

        Raises UsageError for a split, level, seed or kind that does not exist.
        """
        if split not in SPLITS:
            raise UsageError(f"split {split!r} is unknown: use one of {', '.join(SPLITS)}")
        if level not in self.kinds:
            raise UsageError(
                f"level {level!r} does not exist in {self.name}: use one of {', '.join(map(str, self.levels))}"
            )
        if not isinstance(seed, int) or seed < 0:
            raise UsageError(f"seed {seed!r} is not a whole number from 0 on")
        if kind is not None and kind not in self.kinds[level]:
            raise UsageError(
                f"kind {kind!r} is not in level {level} of {self.name}: use one of {', '.join(self.kinds[level])}"
            )
        name = f"overland/{self.name}/{split}/{level}/{seed}"
        kind = kind or random.Random(name).choice(self.kinds[level])
        return self.build(random.Random(f"{name}/{kind}"), split, level, seed, kind)

    def tasks(self, split: str, level: int, start: int = 0) -> Iterator[Task]:
        """Tasks of consecutive seeds, without end."""
        seed = start
        while True:
            yield self.task(split, level, seed)
            seed += 1

    @abc.abstractmethod
    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> Task:
        """One task; takes all its chance from `rng`."""
