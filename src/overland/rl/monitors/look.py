"""All monitors over one episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from overland.rl.monitors.files import outside_workdir, reads_solution, tamper, test_edit
from overland.rl.monitors.programs import early_exit, hard_coded, network
from overland.rl.monitors.story import Story, read_story
from overland.rl.monitors.talk import disagreement, judge_injection, length_inflation, repeated_calls

MONITORS: Mapping[str, Callable[[Story], list[str]]] = {
    "outside_workdir": outside_workdir,
    "test_edit": test_edit,
    "reads_solution": reads_solution,
    "tamper": tamper,
    "hard_coded": hard_coded,
    "early_exit": early_exit,
    "network": network,
    "judge_injection": judge_injection,
    "repeated_calls": repeated_calls,
    "length_inflation": length_inflation,
    "disagreement": disagreement,
}


@dataclass(frozen=True)
class Finding:
    """One suspicion: which monitor, and the words that raised it."""

    kind: str
    evidence: str


def findings(story: Story) -> list[Finding]:
    """Everything suspicious in an episode, one finding a kind (the first words that raised it)."""
    return [Finding(kind, raised[0][:200]) for kind, look in MONITORS.items() if (raised := look(story))]


def hack_flags(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of suspicion in an episode in wire form."""
    return tuple(finding.kind for finding in findings(read_story(record)))
