"""Tasks that are asked in sentences: what a demonstration thinks of is a sentence too."""

from __future__ import annotations

from dataclasses import dataclass

from overland.environments.task import Step, Task


def plan(now: str, *after: str) -> tuple[str, ...]:
    """A step's plan: what is done now, and what is still to come."""
    return (now, *after)


@dataclass(frozen=True)
class SpokenTask(Task):
    """Thinks nothing at low, "read a.py." at high, "read a.py, then repair, then test." at max."""

    def thought(self, effort: str, step: Step) -> str:
        if effort == "low":
            return ""
        return f"{step.plan[0]}." if effort == "high" else f"{', then '.join(step.plan)}."

    def last_thought(self, effort: str) -> str:
        return "" if effort == "low" else f"{self.closing}."
