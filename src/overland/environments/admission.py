"""Is a task fit for training? Probes that a broken verifier or a leaking prompt would fail.

The oracle must score 1. Doing nothing, an empty answer, the prompt said back, a random word, and the right closing word
without the work must score 0. The answer must not stand in the prompt, and the oracle must take level + 1 calls.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from overland.chat import Message
from overland.environments.names import draw_names
from overland.environments.task import Task
from overland.environments.verify import Attempt, combine, normalise, score
from overland.errors import OverlandError


def attempt(task: Task, answer: str | None, *, work: bool) -> float | None:
    """The reward for answering `answer` (None: ending without one), after the oracle's calls or after none."""
    messages: list[Message] = task.messages()
    with task.world() as world:
        if work:
            for step in task.steps:
                world.call_now(step.args)
        if answer is not None:
            messages.append(Message(role="assistant", content=answer))
        return combine(score(task, Attempt(messages, "answered" if answer is not None else "length"), world))


def probes(task: Task) -> dict[str, float | None]:
    """The reward of each probe. `oracle` should be 1, all others 0."""
    word = next(name for name in draw_names(random.Random(f"probe/{task.id}"), task.split, 2) if name != task.answer)
    found = {
        "oracle": attempt(task, task.answer, work=True),
        "nothing": attempt(task, None, work=False),
        "empty": attempt(task, "", work=False),
        "echo": attempt(task, task.prompt, work=False),
        "random": attempt(task, word, work=True),
        "cut_off": attempt(task, None, work=True),
    }
    if task.outcome == "state":
        found["claim"] = attempt(task, task.answer, work=False)
    return found


def faults(task: Task) -> list[str]:
    """What is wrong with a task, in words; empty for a good one."""
    found = []
    for name, reward in probes(task).items():
        wanted = 1.0 if name == "oracle" else 0.0
        if reward != wanted:
            found.append(f"{task.id}: probe {name} scores {reward}, should score {wanted}")
    if normalise(task.answer) in re.findall(r"\w+", task.prompt):
        found.append(f"{task.id}: the answer {task.answer!r} stands in the prompt")
    if len(task.steps) != task.level + 1:
        found.append(f"{task.id}: the oracle takes {len(task.steps)} calls, level {task.level} means {task.level + 1}")
    return found


def admit(tasks: Sequence[Task]) -> None:
    """Raises OverlandError with the first fault; run by whoever is about to train on tasks like these."""
    for task in tasks:
        for fault in faults(task):
            raise OverlandError(f"task refused: {fault}")
