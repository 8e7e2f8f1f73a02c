"""The face of whatever produces groups: environments in this process, a toy in a test, samplers elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from overland.rl.curriculum import Order
from overland.rl.samples import Group


class Rollouts(Protocol):
    """Where groups come from."""

    @property
    def levels(self) -> Mapping[str, Sequence[int]]:
        """The levels of every domain."""
        ...

    def set_weights(self, model: Any, version: int) -> None:
        """The policy has changed: sample from `model` from now on, and reuse nothing computed before."""
        ...

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        """One group per order, in order, sampled by policy `version`."""
        ...
