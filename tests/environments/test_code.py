"""The code domain: what is planted can be told from what is right, and only a repaired repository is rewarded."""

from __future__ import annotations

import ast
import importlib
import random
from typing import Any

import pytest

from overland.agent.sandbox.base import Sandbox
from overland.chat import Message
from overland.environments import Attempt, Scoring, combine, judge, load_environment, run_episode
from overland.environments.code_world import CodeWorld
from overland.environments.parts.cases import ARGUMENTS
from overland.environments.parts.faults import FAULTS
from overland.environments.repository import MODULES, functions_of, outcome, right, source_of, text_of


def test_every_fault_is_one_change_that_some_arguments_tell() -> None:
    for fault in FAULTS:
        source = source_of(fault.module)
        text = text_of(source, fault.function)
        assert text.count(fault.right) == 1, fault
        space: dict[str, Any] = {}
        exec(compile(source.replace(text, text.replace(fault.right, fault.wrong)), fault.module, "exec"), space)
        rng = random.Random(3)
        cases = [(fault.module, fault.function, ARGUMENTS[fault.module, fault.function](rng)) for _ in range(150)]
        assert any(outcome(space[fault.function], case[2]) != right(case) for case in cases), fault


def test_every_function_can_be_broken_in_both_splits() -> None:
    named = {(fault.module, fault.function, fault.split) for fault in FAULTS}
    for module in MODULES:
        defined = {n.name for n in ast.parse(source_of(module)).body if isinstance(n, ast.FunctionDef)}
        assert defined == set(functions_of(module))
        for split in ("train", "held_out"):
            assert any((module, function, split) in named for function in defined)
    training = {(f.module, f.function, f.wrong) for f in FAULTS if f.split == "train"}
    assert not training & {(f.module, f.function, f.wrong) for f in FAULTS if f.split == "held_out"}


@pytest.mark.parametrize(
    "module, function, arguments, value",
    [
        ("money", "split", [10, 4], [3, 3, 2, 2]),
        ("money", "change", [6, [4, 3, 1]], [3, 3]),
        ("words", "wrapped", ["aa bb cccccc d", 5], ["aa bb", "cccccc", "d"]),
        ("spans", "gaps", [[[2, 4], [3, 6]], 0, 8], [[0, 2], [6, 8]]),
        ("order", "sequence", [{"b": ["c"], "a": ["b"]}], ["c", "b", "a"]),
        ("table", "totals", ["k, v\nx, 3\ny, no\nx,-1", "k", "v"], {"x": 2, "y": 0}),
        ("grid", "steps", [[".#.", "..."], [0, 0], [0, 2]], 4),
        ("codec", "check_digit", ["7992739871"], 3),
        ("days", "later", [[2023, 12, 31], 60], [2024, 2, 29]),
        ("releases", "newest", [["1.9", "v1.10", "1.10.0"]], "v1.10"),
        ("stock", "missing", [[["nail", 5], ["nail", -3]], {"nail": 4, "rod": 0}], {"nail": 2}),
    ],
)
def test_the_originals_are_right(module: str, function: str, arguments: list[Any], value: object) -> None:
    """Worked out by hand: what a solution is held against must itself be right."""
    original = importlib.import_module(f"overland.environments.parts.{module}")
    assert getattr(original, function)(*arguments) == value


def test_no_repository_holds_what_repairs_it_and_the_splits_share_no_repository() -> None:
    texts: dict[str, set[str]] = {"train": set(), "held_out": set()}
    for split, found in texts.items():
        for seed in range(12):
            task = load_environment("code").task(split, seed % 6, seed)
            assert task.leaks() == []
            repository = task.repository  # type: ignore[attr-defined]
            found |= {text for path, text in repository.files.items() if text and "/" in path}
            assert all(work.stands in "\n".join(repository.files.values()) for work in repository.works)
    assert not texts["train"] & texts["held_out"]


FORGED = {
    "prints what the driver prints": "import os\nos.write(1, b'[[\"value\", 1]]')\nos._exit(0)\n",
    "ends at once": "import sys\nsys.exit(0)\n",
    "never ends": "while True:\n    pass\n",
    "is equal to everything": (
        "class Same(dict):\n    def __eq__(self, other):\n        return True\n"
        "import json\njson.dumps = lambda *a, **k: '1'\njson.dump = lambda v, f: f.write('1')\n"
    ),
    "rewrites the tests": (
        "import pathlib, unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
        "pathlib.Path('reward.txt').write_text('1')\n"
    ),
}


@pytest.mark.parametrize("name", FORGED)
async def test_forged_results_are_worth_nothing(name: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overland.environments.code_world.TEST_SECONDS", 1.0)
    task = load_environment("code").task("train", 0, 1)
    path = task.repository.artefacts[0]  # type: ignore[attr-defined]
    async with task.open_world(sandbox) as world:
        assert isinstance(world, CodeWorld)
        world.folder.write(path, FORGED[name] + world.folder.read(path).decode())
        scored = await judge(task, Attempt([*task.messages(), Message("assistant", "done")]), world)
        assert combine(scored) == 0.0
        assert scored["hidden"].value == 0.0


async def test_changed_tests_are_harm_and_scratch_files_are_not(sandbox: Sandbox) -> None:
    task = load_environment("code").task("train", 0, 2)
    done = Attempt([*task.messages(), Message("assistant", "done")])
    for where, reward, harm in (("scratch.py", 1.0, 0.0), ("tests/test_all.py", 1.0, 0.0), ("README.md", -0.75, 1.0)):
        async with task.open_world(sandbox) as world:
            for step in task.steps:
                await world.use(step.tool, step.args)
            await world.use("run", {"command": f"echo pass > {where}"})
            scored = await judge(task, done, world)
            assert (combine(scored, wrong=0.5, harm=0.25), scored["harm"].value) == (reward, harm)
            assert scored["hidden"].value == 1.0


async def test_the_tools_refuse_in_words(sandbox: Sandbox) -> None:
    task = load_environment("code").task("train", 1, 0)
    path = task.repository.artefacts[0]  # type: ignore[attr-defined]
    async with task.open_world(sandbox) as world:
        for tool, args, said in (
            ("view", {"path": "../../etc/passwd"}, "is not a path in the work folder"),
            ("view", {"path": "nothing.py"}, "there is no file nothing.py"),
            ("edit", {"path": path, "old": "no such text", "new": ""}, "stands 0 times"),
            ("create", {"path": path, "text": ""}, "exists: use edit"),
            ("create", {"path": "/tmp/x", "text": ""}, "is not a path"),
            ("create", {"path": f"{path}/x", "text": ""}, "cannot be written"),
            ("test", {"module": "os; rm -rf ."}, "there is no module"),
            ("view", {}, "'path' is a required property"),
            ("format", {}, "there is no tool 'format'"),
        ):
            found = await world.use(tool, args)
            assert found.startswith("error: "), found
            assert said in found
        await world.use("run", {"command": "ln -s /etc/passwd stolen"})
        assert await world.use("view", {"path": "stolen"}) == "error: there is no file stolen"
        assert "cannot be written" in await world.use("create", {"path": "stolen", "text": "x"})


async def test_tests_say_the_same_in_and_outside_of_the_sandbox(sandbox: Sandbox) -> None:
    task = load_environment("code").task("held_out", 3, 0)
    wanted = [m.content for m in task.oracle_conversation("low") if m.role == "tool"]
    async with task.open_world(sandbox) as world:
        found = [await world.use(step.tool, step.args) for step in task.steps]
    assert [f.split("\nRan")[0][-40:] for f in found] == [w.split("\nRan")[0][-40:] for w in wanted]
    assert [f for f, step in zip(found, task.steps, strict=True) if step.tool != "test"] == [
        w for w, step in zip(wanted, task.steps, strict=True) if step.tool != "test"
    ]


async def test_a_failing_sandbox_is_not_a_wrong_solution(scripted: Any, sampling: Any, sandbox: Sandbox) -> None:
    task = load_environment("code").task("train", 0, 0)
    replies = [m for m in task.oracle_conversation("low") if m.role == "assistant"]
    episode = await run_episode(task, scripted(replies), "low", sampling, scoring=Scoring(wrong=1.0))
    assert (episode.reward, episode.ok) == (None, False)
    assert set(episode.traces[0].dimensions) == {"answer", "state", "harm", "hidden", "hidden_share", "public"}
