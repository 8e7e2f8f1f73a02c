"""A program to call and a folder to call it in: a corpus, a fresh nano model under runs/quickstart, its episodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from studio.made_up import make_run

from overland.corpus import CorpusSection, build
from overland.model import Decoder, initialise, preset, save_model

from .program import Overland, run

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="session")
def overland() -> Overland:
    """The program."""
    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; tests get copies."""
    root = tmp_path_factory.mktemp("made")
    shutil.copytree(RECIPES, root / "recipes")
    notes = root / "notes"
    notes.mkdir()
    (notes / "todo.txt").write_text("buy milk\ncall mira\n")
    (notes / "prose.md").write_text(
        "\n\n".join(
            f"On day {day} the team of {name} walked to the harbour and wrote down what they had seen there, because "
            f"the harbour of {name} is where the boats of the {place} come in and the people have stories to tell."
            for day, (name, place) in enumerate(zip(NAMES, PLACES, strict=True))
        )
    )
    for kind, words in (("good", "walked to the harbour with"), ("bad", "buy cheap now, click")):  # for a classifier
        (root / kind).mkdir()
        for number in range(12):
            (root / kind / f"{number}.txt").write_text(f"{words} {PLACES[number % 10]} number {number}\n" * 5)
    make_run(root / "runs/quickstart")
    episodes = root / "runs/quickstart/episodes"
    for step in ("00000", "00003"):
        shutil.copyfile(episodes / "rl-heldout.jsonl.zst", episodes / f"rl-step-{step}.jsonl.zst")
    for corpus in ("corpus/stdlib", "runs/quickstart/corpus"):
        section = CorpusSection(max_megabytes=0.3, tokenizer_megabytes=0.1)
        build(section, root / corpus)
    for name_of_run in ("pretrain", "sft", "quickstart"):
        folder = root / f"runs/{name_of_run}/model"
        save_model(initialise(Decoder(preset("nano")), "induction", 0), folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "lineage.json"):
            if (root / "corpus/stdlib" / name).is_file():
                shutil.copyfile(root / "corpus/stdlib" / name, folder / name)
    talk = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    (root / "talks.jsonl").write_text((json.dumps(talk) + "\n") * 12)
    return root


@pytest.fixture
def workplace(made: Path, tmp_path: Path) -> Path:
    """A copy to work in."""
    return shutil.copytree(made, tmp_path / "workplace")


NAMES = ("Tolan", "Mira", "Besk", "Orla", "Quill", "Rosa", "Sten", "Tove", "Ulf", "Vera")
PLACES = ("north", "south", "islands", "lakes", "river", "forest", "plain", "coast", "valley", "hills")
