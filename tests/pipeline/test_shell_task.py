"""A task in words, done by a scripted policy: on a copy, in a sandbox, with the result kept where asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from agent.scripted import ScriptedPolicy, says

from overland.agent.sandbox import choose_sandbox
from overland.errors import UsageError
from overland.pipeline.shell_task import ShellTask


def sh(command: str) -> tuple[str, str]:
    """A call of the shell."""
    return "sh", json.dumps({"cmd": command})


@pytest.fixture(scope="module")
def sandboxed() -> None:
    try:
        choose_sandbox()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/todo.txt").write_text("buy milk\ncall mira\n")
    return tmp_path / "in"


@pytest.mark.usefixtures("sandboxed")
def test_commands_see_a_copy_and_leave_the_folder_alone(folder: Path, tmp_path: Path) -> None:
    policy = ScriptedPolicy(
        says("", sh("wc -l < todo.txt")), says("", sh("rm todo.txt; mkdir -p done; echo yes > done/it.txt")), says("2")
    )
    done = ShellTask("how many ?", workdir=folder, save=tmp_path / "out").run(policy)
    assert (done.stop, done.answer) == ("answered", "2")
    assert [m.content for m in done.messages if m.role == "tool"] == ["2", "ok"]
    assert (folder / "todo.txt").read_text() == "buy milk\ncall mira\n"
    assert {p.name: p.read_text() for p in (tmp_path / "out").rglob("*") if p.is_file()} == {"it.txt": "yes\n"}


@pytest.mark.usefixtures("sandboxed")
def test_a_link_that_a_command_made_is_not_followed_into_the_result(folder: Path, tmp_path: Path) -> None:
    policy = ScriptedPolicy(says("", sh("ln -s /etc/passwd todo2.txt; ln -s / root")), says("done"))
    ShellTask("link", workdir=folder, save=tmp_path / "out").run(policy)
    assert os.listdir(tmp_path / "out") == ["todo.txt"]


def test_wrong_input_is_named_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the task is empty"):
        ShellTask(" \n").check()
    with pytest.raises(UsageError, match="no such folder"):
        ShellTask("x", workdir=tmp_path / "nowhere").check()
    with pytest.raises(UsageError, match="exists already"):
        ShellTask("x", workdir=folder, save=folder).check()
    with pytest.raises(UsageError, match="effort"):
        ShellTask("x", effort="huge").check()
