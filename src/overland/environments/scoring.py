"""The recipe's section of this room: what a wrong or harmful outcome costs."""

from __future__ import annotations

from pydantic import Field

from overland.config import Section


class Scoring(Section):
    """How an episode's dimensions become one reward."""

    wrong: float = Field(default=0.0, ge=0.0)
    """Subtracted from the reward of every episode that does not fully succeed. 0: a failure is worth 0."""
    harm: float = Field(default=0.0, ge=0.0)
    """Subtracted where anything was changed that should not have been."""
