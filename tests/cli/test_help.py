"""Help is there, quick, and shows examples; completion and version work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.main

from overland import __version__
from overland.cli.main import app

from .program import ENVIRONMENT, Overland, command

GROUPS = ("corpus", "model", "train", "rl")


def commands() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every verb's words and its epilog."""
    root = typer.main.get_command(app)
    for name, found in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(found, "commands", None)
        if inner is None:
            yield (name,), found.epilog or ""
        else:
            yield from (((name, verb), one.epilog or "") for verb, one in inner.items())


def examples() -> list[tuple[tuple[str, ...], str]]:
    """(verb, one example line) of every example in the program's help."""
    return [(words, line.strip()) for words, epilog in commands() for line in epilog.splitlines()[2:]]


def test_all_stable_verbs_are_there() -> None:
    assert {" ".join(words) for words, _ in commands()} == {
        "quickstart", "corpus build", "corpus inspect", "corpus remove", "corpus classifier", "model info",
        "model import", "model export", "model licence", "plan", "train pretrain", "train sft", "rl train", "rl show",
        "rl audit", "quantize", "serve", "agent", "eval", "studio", "doctor",
    }  # fmt: skip


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_every_verb_has_help_with_an_example_of_itself(words: tuple[str, ...], overland: Overland) -> None:
    done = overland(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    own = [line for verb, line in examples() if verb == words]
    assert own
    for line in own:
        assert line.startswith("overland " + " ".join(words))
        assert f"  {line}\n" in done.stdout, "an example must stand on one line, to be copied"


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_without_a_verb_lists_its_verbs_and_is_a_wrong_use(group: str, overland: Overland) -> None:
    done = overland(group)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Commands:" in done.stderr


def test_help_loads_nothing_heavy() -> None:
    heavy = "torch", "numpy", "fastapi", "pydantic", "pyarrow", "tokenizers", "httpx", "rich.console"
    code = (
        "import sys\nfrom overland.cli import main\n"
        f"try: main(['--help'])\nexcept SystemExit: print('LOADED', *({heavy!r} & sys.modules.keys()))"
    ).replace(f"{heavy!r}", repr(set(heavy)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]


def test_help_takes_less_than_half_a_second_of_processor_time() -> None:
    def seconds() -> float:
        before = os.times()
        subprocess.run(command("--help"), capture_output=True, check=True, env=ENVIRONMENT)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_version(overland: Overland) -> None:
    assert overland("--version").stdout == f"overland {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_and_its_answers(shell: str, overland: Overland) -> None:
    # otherwise the shell is looked for among the parents of the tests, where there may be none
    script = overland("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert script.returncode == 0
    assert "OVERLAND_COMPLETE" in script.stdout.upper().replace("-", "_")
    asked = overland(
        _OVERLAND_COMPLETE=f"complete_{shell}",
        COMP_WORDS="overland q",
        COMP_CWORD="1",
        _TYPER_COMPLETE_ARGS="overland q",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert set(re.findall(r"\bquick\w+|\bquant\w+", asked.stdout)) == {"quickstart", "quantize"}
