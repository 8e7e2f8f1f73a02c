"""Every command of docs/corpus.md runs as printed, one after the other, and every recipe in it is one."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from overland.cli.main import main
from overland.config import resolve_recipe
from overland.licences import profile
from overland.pipeline.standalone import CorpusRecipe, PretrainRecipe

from .conftest import prose

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/corpus.md").read_text("utf-8")
SHORTER = " --set corpus.max_megabytes=0.3 --set corpus.tokenizer_megabytes=0.1"  # of the standard library


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for name, first in (("notes", 0), ("more", 8), ("good", 20), ("bad", 40)):  # `more` has half of `notes` again
        (tmp_path / name).mkdir()
        for number in range(first, first + 16):
            words = prose(number, 150)
            (tmp_path / name / f"{number}.txt").write_text(words.upper() if name == "bad" else words)
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("bash")).splitlines():
        more = SHORTER if "recipes/corpus.toml" in line else ""
        program, *words = shlex.split(line + more)
        assert program == "overland"
        with pytest.raises(SystemExit) as left:
            main(words)
        said = capsys.readouterr()
        assert left.value.code == 0, (line, said.err)
        assert said.out.strip()
    assert "8 exact duplicate" in said.out  # the last one: against corpus/may


@pytest.mark.parametrize("text", blocks("toml"), ids=lambda text: text.split()[0])
def test_recipes_of_the_page_are_recipes(text: str, tmp_path: Path) -> None:
    data = tomllib.loads(text)
    if "about" in data:
        (tmp_path / "policy.toml").write_text(text)
        assert profile(str(tmp_path / "policy.toml"))
    else:
        resolve_recipe(PretrainRecipe if "pretrain" in data else CorpusRecipe, data)


def test_the_program_of_the_page_compiles() -> None:
    (program,) = blocks("python")
    compile(program, "docs/corpus.md", "exec")
