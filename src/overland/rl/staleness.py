"""How old a sample is: the one definition that the gate, the filter and the figures share.

age = version being trained - oldest version that wrote any token of the sample. Time in a queue counts, because the
trainer's version moves on meanwhile; a trajectory over several versions is as old as its oldest part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from overland.rl.samples import Group, Sample


def age(sample: Sample, version: int) -> int:
    """Updates between the oldest token of `sample` and the policy `version` that is about to be trained."""
    return version - sample.policy_version


def without_stale(groups: Sequence[Group], version: int, max_age: int | None) -> list[Group]:
    """The groups with samples older than `max_age` left unjudged: they take no part in the baseline or the loss."""
    if max_age is None:
        return list(groups)
    return [
        g.with_samples([replace(s, reward=None) if age(s, version) > max_age else s for s in g.samples])
        if any(age(s, version) > max_age for s in g.samples)
        else g
        for g in groups
    ]


def age_figures(groups: Sequence[Group], version: int, max_age: int | None) -> dict[str, float]:
    """Ages of a batch, before anything was dropped."""
    ages = [age(s, version) for g in groups for s in g.samples]
    if not ages:
        return {}
    return {
        "rl/age_mean": mean(ages),
        "rl/age_max": float(max(ages)),
        "rl/stale": 0.0 if max_age is None else sum(a > max_age for a in ages) / len(ages),
    }
