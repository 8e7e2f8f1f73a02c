"""Terminal levels 4 and 5: a chain of notes, each an errand of its own (errands.py)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from overland.environments.errands import ERRANDS, Machine
from overland.environments.machine_world import MachineWorld
from overland.environments.names import draw_names
from overland.environments.spoken import SpokenTask
from overland.environments.task import Step

KINDS = {4: ("logs", "archives", "permissions", "processes", "git"), 5: ("rounds",)}
_FIRST = {"logs": "log", "archives": "unpack", "permissions": "permit", "processes": "stop", "git": "history"}
ASKED: Mapping[str, tuple[str, ...]] = {
    "train": (
        "Start with the note {note} and do what it says; every note names the next one. After the last one say done.",
        "There is work in the notes. Read {note} first, do it, go on where it points to, and answer done at the end.",
    ),
    "held_out": (
        "{note} is the beginning of a list of jobs, each of which leads to another. Finish them all, then reply done.",
    ),
}


@dataclass(frozen=True)
class MachineTask(SpokenTask):
    """What MachineWorld needs."""

    files: dict[str, str | bytes] = field(kw_only=True)
    expected: dict[str, str | bytes] = field(kw_only=True)
    modes: dict[str, int] = field(kw_only=True)
    expected_modes: dict[str, int] = field(kw_only=True)
    workers: tuple[str, ...] = field(kw_only=True)
    ended: frozenset[str] = field(kw_only=True)

    def world(self) -> MachineWorld:
        trusted = frozenset(step.args["cmd"] for step in self.steps)
        return MachineWorld(
            self.files, self.expected, self.modes, self.expected_modes, self.workers, self.ended, trusted
        )


def build(rng: random.Random, split: str, level: int, seed: int, kind: str) -> MachineTask:
    """Level 4: three errands, the first of the kind's own. Level 5: seven, every sort at least once."""
    sorts = list(ERRANDS)
    if level == 4:
        chosen = [_FIRST[kind], *rng.sample([sort for sort in sorts if sort != _FIRST[kind]], 2)]
    else:
        chosen = [*rng.sample(sorts, len(sorts)), *rng.sample(["log", "unpack", "history"], 2)]
    names = draw_names(rng, split, 2 * len(chosen) + 6)
    own, notes, others = names[: len(chosen)], names[len(chosen) : 2 * len(chosen)], names[2 * len(chosen) :]
    machine = Machine(files={"out/.keep": "", "readme": f"notes are in notes/, for {others[5]}\n"})
    for at, (sort, name) in enumerate(zip(chosen, own, strict=True)):
        path = f"notes/{notes[at]}"
        machine.do(f"read {path}", f"cat {path}")
        rng.shuffle(others)
        said = ERRANDS[sort](rng, machine, name, others)
        after = f"next: notes/{notes[at + 1]}" if at + 1 < len(chosen) else "this was the last note"
        machine.files[path] = f"{said}\n{after}\n"
    ended = frozenset(machine.workers)
    if machine.workers:  # others run as well, and are to be left alone
        machine.workers += others[:2]
        machine.files |= {f"run/{name}.start": "running\n" for name in others[:2]}
    prompt = rng.choice(ASKED[split]).format(note=f"notes/{notes[0]}")
    return MachineTask(
        "terminal", kind, split, level, seed, prompt, "done", tuple(_unrepeated(machine.steps)), outcome="state",
        closing="all notes are done", files=machine.files, expected=machine.expected, modes=machine.modes,
        expected_modes=machine.expected_modes, workers=tuple(sorted(machine.workers)), ended=ended,
    )  # fmt: skip


def _unrepeated(steps: list[Step]) -> list[Step]:
    """Without commands that were already given (to see what runs is needed once)."""
    return list({step.args["cmd"]: step for step in reversed(steps)}.values())[::-1]
