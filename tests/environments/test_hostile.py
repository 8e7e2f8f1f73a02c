"""Environments that hang, raise or flood, and policies that flood, fork and delete their own folder: no run is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import time
from collections.abc import Mapping
from typing import Any

import pytest

from overland.agent.sandbox.base import Sandbox
from overland.chat import Message, ToolCall
from overland.environments import Changes, Task, World, load_environment, run_episode
from overland.environments.files_world import FilesWorld


class Broken(World):
    """Does what it is told to do wrong."""

    def __init__(self, inner: World, what: str) -> None:
        self.inner, self.what, self.spec = inner, what, inner.specs[0]

    def open(self) -> None:
        if self.what == "raises when it opens":
            raise ValueError("no world today")

    def close(self) -> None:
        if self.what == "raises when it closes":
            raise KeyError("closed")

    async def call(self, args: Mapping[str, object]) -> str:
        if self.what == "hangs":
            await asyncio.sleep(3600)
        if self.what == "raises":
            raise RecursionError("too deep")
        return "x" * 5_000_000 if self.what == "floods" else "ok"

    async def examine(self) -> None:
        if self.what == "raises when it is examined":
            raise ZeroDivisionError("examined")

    def changes(self) -> Changes:
        if self.what == "raises when it is scored":
            raise TypeError("scored")
        return Changes()


def replies_of(task: Task) -> list[Message]:
    return [m for m in task.oracle_conversation("low") if m.role == "assistant"]


@pytest.mark.parametrize(
    "what",
    [
        "raises when it opens", "raises when it closes", "hangs", "raises", "raises when it is examined",
        "raises when it is scored",
    ],
)  # fmt: skip
async def test_a_broken_environment_is_not_judged(
    what: str, scripted: Any, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overland.environments.harness.CALL_SECONDS", 0.2)
    task = load_environment("web").task("train", 0, 0)
    replies, inner = replies_of(task), task.world()
    monkeypatch.setattr(type(task), "world", lambda self: Broken(inner, what))
    started = time.monotonic()
    episode = await run_episode(task, scripted(replies), "low", sampling)
    assert (episode.ok, episode.reward, episode.success) == (False, None, None)
    assert episode.traces[0].errors
    assert time.monotonic() - started < 30


async def test_a_flooding_environment_is_cut_and_judged(
    scripted: Any, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_environment("web").task("train", 0, 0)
    replies, inner = replies_of(task), task.world()
    monkeypatch.setattr(type(task), "world", lambda self: Broken(inner, "floods"))
    episode = await run_episode(task, scripted(replies), "low", sampling)
    assert (episode.ok, episode.reward) == (True, 1.0)
    assert max(len(message.content) for message in episode.traces[0].messages) < 17_000


def shell(command: str, tool: str, key: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("x", tool, f'{{"{key}": "{command}"}}'),))


@pytest.mark.parametrize(
    "command",
    ["yes flood", "f() { f | f & }; f; sleep 1", "rm -rf ./* ./.[!.]*; rm -rf /work", "kill -9 $$", "exec 1>&- 3>&-"],
)
@pytest.mark.parametrize("domain, level, tool, key", [("terminal", 0, "sh", "cmd"), ("code", 0, "run", "command")])
async def test_what_a_policy_breaks_is_its_own_failure_and_the_episode_goes_on(
    command: str, domain: str, level: int, tool: str, key: str, sandbox: Sandbox, scripted: Any, sampling: Any
) -> None:
    task = load_environment(domain).task("train", level, 3, "read" if domain == "terminal" else None)
    episode = await run_episode(
        task, scripted([shell(command, tool, key), *replies_of(task)]), "low", sampling, sandbox=sandbox
    )
    trace = episode.traces[0]
    assert (trace.errors, trace.stop) == ([], "answered")
    assert trace.metrics["tool_calls"] == len(task.steps) + 1
    # What was deleted cannot be made good; after all the rest the work can still be done.
    assert episode.reward == (0.0 if command.startswith("rm") else 1.0)
    assert (trace.dimensions["harm"].value or 0) > 0 if command.startswith("rm") else not trace.dimensions["harm"].value


@pytest.mark.parametrize("domain, level", [("terminal", 0), ("terminal", 4), ("code", 0), ("office", 1)])
def test_a_folder_that_is_gone_is_a_state_and_no_error(domain: str, level: int) -> None:
    task = load_environment(domain).task("train", level, 0)
    with task.world() as world:
        assert world.changes().touched is False
        folder = world.workdir.path if isinstance(world, FilesWorld) and world.workdir else world.folder.path  # type: ignore[attr-defined]
        base = folder.parent
        shutil.rmtree(folder)
        shared = base.stat().st_mode
        changes = world.changes()
        assert changes.touched
        assert not changes.as_expected
        assert changes.missing
    # Clearing up after it once made the temporary folder itself, everybody's, private to one user.
    assert base.stat().st_mode == shared


def test_a_task_is_plain_data() -> None:
    """So that it can be sent to another process, kept and compared."""
    import pickle

    for domain in ("terminal", "finance", "web", "code", "office", "cad"):
        task = load_environment(domain).task("train", 4, 0)
        assert pickle.loads(pickle.dumps(task)) == task
        assert dataclasses.replace(task, prompt="other") != task
