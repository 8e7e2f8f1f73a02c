"""Effort: how much a model is asked to think before it answers."""

from __future__ import annotations

from overland.errors import UsageError

EFFORTS = ("low", "high", "max")

# What other houses' clients send. K3 knows three tiers, although its prompt advertises four.
_ALIASES = {"none": "low", "minimal": "low", "medium": "high", "xhigh": "max"}


def normalise_effort(effort: str) -> str:
    """One of EFFORTS for any tier name in common use (medium -> high, xhigh -> max, minimal -> low).

    For the edges (HTTP, command line); inside the house only EFFORTS occur. Raises UsageError.
    """
    tier = effort.strip().lower()
    tier = _ALIASES.get(tier, tier)
    if tier not in EFFORTS:
        raise UsageError(f"effort is {effort!r}; valid: {', '.join(EFFORTS)} (also {', '.join(sorted(_ALIASES))})")
    return tier
