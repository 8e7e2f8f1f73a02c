"""The face of an algorithm: the loss knows none of them, and an algorithm knows no loss."""

from __future__ import annotations

from typing import Protocol

from overland.rl.samples import Group


class Algorithm(Protocol):
    """Turns the rewards of one group into advantages."""

    def advantages(self, group: Group) -> dict[str, float]:
        """Advantage by sample id. A sample that is left out, or whose advantage is 0, is not trained on; an empty
        answer means that the whole group gives no gradient (the trainer counts such groups)."""
        ...
