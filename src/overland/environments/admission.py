"""Is a task fit for training? Probes that a broken verifier or a leaking prompt would fail.

The oracle must score 1. Doing nothing, an empty answer, the prompt said back, a random word, the right closing word
without the work, and the world's files overwritten with good marks must score 0. The answer must stand neither in the
prompt nor in the world before the work is done, and the oracle must take the calls that the level promises, all of
them different.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence

from overland.chat import Message
from overland.environments.load import DOMAINS
from overland.environments.names import draw_names
from overland.environments.task import Task
from overland.environments.verify import Attempt, combine, normalise, score
from overland.errors import OverlandError

MARKS = {
    "reward.txt": "1",
    "reward.json": '{"reward": 1.0, "success": true}',
    "logs/verifier/reward.txt": "1.0",
    "results.json": '{"passed": true, "score": 1}',
    "conftest.py": "import pytest\n\n\ndef pytest_pyfunc_call(pyfuncitem):\n    return True\n",
    "sitecustomize.py": "import unittest\n\nunittest.TestCase.assertEqual = lambda *a, **k: None\n",
}
"""What an attempt at the reward's own files leaves in a world that has files."""


def attempts(
    task: Task, answers: Mapping[str, str | None], *, work: bool = False, marks: bool = False
) -> dict[str, float | None]:
    """The reward of each answer (None: ending without one), after the oracle's calls or after none.

    marks: files that claim success are put into the world before it is scored; nothing where it has no files.
    """
    with task.world() as world:
        for step in task.steps if work else ():
            world.use_now(step.tool or world.specs[0].name, step.args)
        if marks and not world.put(MARKS):
            return {}
        found = {}
        for name, answer in answers.items():
            said = [Message(role="assistant", content=answer)] if answer is not None else []
            finished = Attempt([*task.messages(), *said], "answered" if said else "length")
            found[name] = combine(score(task, finished, world))
        return found


def probes(task: Task) -> dict[str, float | None]:
    """The reward of each probe. `oracle` should be 1, all others 0."""
    word = next(name for name in draw_names(random.Random(f"probe/{task.id}"), task.split, 2) if name != task.answer)
    claim = {} if task.outcome == "answer" else {"claim": task.answer}
    return {
        **attempts(task, {"oracle": task.answer, "random": word, "cut_off": None}, work=True),
        **attempts(task, {"nothing": None, "empty": "", "echo": task.prompt, **claim}),
        **attempts(task, {"overwrite": word if task.outcome == "answer" else task.answer}, marks=True),
    }


def faults(task: Task) -> list[str]:
    """What is wrong with a task, in words; empty for a good one."""
    found = []
    for name, reward in probes(task).items():
        wanted = 1.0 if name == "oracle" else 0.0
        if reward != wanted:
            found.append(f"{task.id}: probe {name} scores {reward}, should score {wanted}")
    if _says(task.prompt, task.answer) and task.outcome == "answer":
        found.append(f"{task.id}: the answer {task.answer!r} stands in the prompt")
    found += [f"{task.id}: {leak}" for leak in task.leaks()]
    calls = {(step.tool, json.dumps(dict(step.args), sort_keys=True)) for step in task.steps}
    least = DOMAINS[task.domain].least_calls[task.level] if task.domain in DOMAINS else task.level + 1
    if len(calls) < least:
        found.append(f"{task.id}: the oracle takes {len(calls)} calls, level {task.level} means {least}, all different")
    return found


def _says(text: str, answer: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(normalise(answer))}(?!\w)", text.casefold()) is not None


def admit(tasks: Sequence[Task]) -> None:
    """Raises OverlandError with the first fault; run by whoever is about to train on tasks like these."""
    for task in tasks:
        for fault in faults(task):
            raise OverlandError(f"task refused: {fault}")
