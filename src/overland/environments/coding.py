"""Coding tasks: a small repository with faults and missing functions; public tests to try, hidden ones that count."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from overland.environments.code_world import CodeWorld
from overland.environments.names import draw_names
from overland.environments.repository import Repository, Work, make_repository
from overland.environments.reward import Finished, Reward, Role
from overland.environments.spoken import SpokenTask, plan
from overland.environments.task import Step
from overland.environments.taskset import Taskset
from overland.environments.world import World

SIZES: Mapping[tuple[int, str], tuple[int, int, int]] = {
    (0, "fault"): (1, 1, 0),
    (1, "fault"): (2, 1, 0),
    (1, "missing"): (2, 0, 1),
    (2, "fault"): (3, 1, 0),
    (2, "missing"): (3, 0, 1),
    (3, "mixed"): (4, 1, 1),
    (4, "mixed"): (6, 2, 1),
    (5, "mixed"): (10, 5, 3),
}
"""(modules, functions broken, functions missing) by level and kind."""

ASKED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "named": (
            "In the package {package}, {what}. Repair it.",
            "Something is wrong in {package}: {what}. Make it right.",
        ),
        "unnamed": (
            "Not everything in the package {package} does what its docstring says: {count} functions are wrong or not "
            "written yet. Find and repair them.",
            "{count} functions of {package} are broken or missing. Get all of them to do what the docstrings promise.",
        ),
        "close": ("Do not change the tests. Answer done when you are finished.", "Leave tests/ alone, then say done."),
    },
    "held_out": {
        "named": ("A user of {package} reports that {what}. Please look into this.",),
        "unnamed": ("The tests of {package} are red because of {count} functions. Bring code in line with its docs.",),
        "close": ("Tests stay untouched. Your last word is done.",),
    },
}


@dataclass(frozen=True)
class CodeTask(SpokenTask):
    """The repository as it is at first, and what is wrong with it."""

    repository: Repository = field(kw_only=True)

    check_roles: ClassVar[Mapping[str, Role]] = {"hidden": "reward", "hidden_share": "monitor", "public": "monitor"}

    def world(self) -> CodeWorld:
        return CodeWorld(self.repository)

    def leaks(self) -> list[str]:
        files = self.repository.files
        return [
            f"what repairs {work.function} stands in {path}"
            for work in self.repository.works
            for path, text in files.items()
            if f"\n{work.repaired}\n" in text
        ]

    def checks(self, finished: Finished, world: World) -> Mapping[str, Reward]:
        """hidden: every hidden case comes out right; the shares that do are kept beside it."""
        assert isinstance(world, CodeWorld)
        hidden, public = world.passed()
        return {
            "hidden": Reward(float(hidden == 1.0)),
            "hidden_share": Reward(hidden, role="monitor"),
            "public": Reward(public, role="monitor"),
        }


class Coding(Taskset):
    """Tools to list, view, search, edit, create, run and test; see the module."""

    name = "code"
    kinds: ClassVar[dict[int, tuple[str, ...]]] = {
        level: tuple(kind for at, kind in SIZES if at == level) for level in range(6)
    }
    runs_commands: ClassVar[bool] = True
    least_calls: ClassVar[tuple[int, ...]] = (3, 4, 4, 8, 12, 30)

    def build(self, rng: random.Random, split: str, level: int, seed: int, kind: str) -> CodeTask:
        modules, broken, missing = SIZES[level, kind]
        package, *suffixes = draw_names(rng, split, modules + 1)
        repository = make_repository(rng, split, package, suffixes, modules, broken, missing)
        words = ASKED[split]
        if level <= 2:
            prompt = rng.choice(words["named"]).format(package=package, what=_symptom(repository.works[0], level))
        else:
            prompt = rng.choice(words["unnamed"]).format(package=package, count=len(repository.works))
        return CodeTask(
            self.name, kind, split, level, seed, f"{prompt} {rng.choice(words['close'])}", "done",
            _oracle(repository, level), outcome="checks", closing="tests pass", repository=repository,
        )  # fmt: skip


def _symptom(work: Work, level: int) -> str:
    where = f" (in {work.module}.py)" if level == 0 else ""
    if work.missing:
        return f"the function {work.function} is not written yet"
    return f"the function {work.function}{where} does not do what its docstring says"


def _oracle(repository: Repository, level: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    if level >= 3:
        steps.append(Step(plan("see what there is", "test", "repair", "test again"), {}, "ls"))
        steps.append(Step(plan("see what fails", "repair", "test again"), {"module": "all"}, "test"))
    for work in repository.works:
        path = f"{repository.package}/{work.module}.py"
        if level >= 1:
            # The test file shows what is wanted; a module's own tests are run after the repair.
            steps.append(
                Step(plan(f"find {work.function}", "read", "repair", "test"), {"text": work.function}, "search")
            )
        steps.append(Step(plan(f"read {path}", "repair", "test"), {"path": path}, "view"))
        edit = {"path": path, "old": work.stands, "new": work.repaired}
        steps.append(Step(plan(f"repair {work.function}", "test"), edit, "edit"))
        steps.append(Step(plan(f"test {work.module}"), {"module": work.module}, "test"))
    return tuple(steps)
