"""Small folders of prose made from a seed, and one small corpus shared by the tests that only read."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from overland.corpus import CorpusReport, CorpusSection, build

SMALL = {"stdlib": False, "vocab_size": 320, "heldout": 0.2, "shard_tokens": 4096}
COMMON = ("the", "of", "and", "to", "that", "with", "is", "be", "have", "in", "for", "on", "by", "this", "from", "it")
RARE = [
    f"{a}{b}{c}" for a in ("ber", "cal", "dor", "fen", "gul") for b in ("a", "i", "o", "u") for c in ("ta", "rim", "sk")
]


def prose(seed: int | str, words: int = 120) -> str:
    """Sentences of common and invented words: passes the prose rules, and no two seeds are near."""
    rng = random.Random(f"prose {seed}")
    lines = []
    while words > 0:
        count = min(words, rng.randint(8, 14))
        line = [rng.choice(COMMON if rng.random() < 0.4 else RARE) for _ in range(count)]
        lines.append(" ".join(line).capitalize() + ".")
        words -= count
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """Writes {relative path: content} into a fresh folder."""

    def write(files: dict[str, str | bytes]) -> Path:
        root = tmp_path / "texts"
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        root.mkdir(exist_ok=True)
        return root

    return write


def hashes(out: Path) -> dict[str, str]:
    """SHA-256 of every file of a corpus, by its name."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def quiet(*args: object, **kwargs: object) -> object:
    """A progress that shows nothing."""
    import contextlib

    class Bar:
        def advance(self, n: int = 1, **figures: object) -> None:
            pass

    return contextlib.nullcontext(Bar())


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CorpusReport]:
    """A corpus of forty public-domain texts in several shards."""
    root = tmp_path_factory.mktemp("small")
    texts = root / "texts"
    texts.mkdir()
    (texts / "LICENSE").write_text("Creative Commons Legal Code\n\nCC0 1.0 Universal\n")
    for number in range(40):
        (texts / f"{number:02d}.txt").write_text(prose(number, 60 + 10 * (number % 9)))
    out = root / "corpus"
    return out, build(CorpusSection(text=(str(texts),), **SMALL), out, progress=quiet)
