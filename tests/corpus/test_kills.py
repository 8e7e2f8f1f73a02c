"""A build that is killed at any moment goes on with the same command and ends in the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overland.corpus import CorpusSection, build

from .conftest import SMALL, hashes, prose, quiet

# Pieces of four kilobytes, so that there are many moments at which something is half done.
SCRIPT = """
import sys
from overland.corpus import CorpusSection, build
sys.modules["overland.corpus.build"].piece_bytes = lambda section, workers: 4000
stages = dict(line_words=12, substring_bytes=200, rejected_samples=2, index={"save": True})
stages["decontamination"] = {"sets": (sys.argv[3],)}
small = dict(stdlib=False, vocab_size=320, heldout=0.2, shard_tokens=4096)
build(CorpusSection(text=(sys.argv[1],), **small, **stages), sys.argv[2])
"""


@pytest.mark.slow
def test_build_killed_at_random_moments_ends_in_the_same_bytes(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "LICENSE").write_text("CC0 1.0 Universal")
    for number in range(60):
        (texts / f"{number}.txt").write_text(prose(number, 150) + f"By {number}@example.org.\n")
    evals = tmp_path / "evals.jsonl"
    evals.write_text(json.dumps({"question": prose(7, 150)[:200]}) + "\n")
    stages = {"line_words": 12, "substring_bytes": 200, "rejected_samples": 2, "index": {"save": True}}
    stages["decontamination"] = {"sets": (str(evals),)}
    section = CorpusSection(text=(str(texts),), **SMALL, **stages)
    build(section, tmp_path / "whole", progress=quiet)
    out, work = tmp_path / "cut" / "out", tmp_path / "cut" / ".out.work"
    rng = random.Random(4)
    killed_with_work = 0
    # Each try is killed once it has written a drawn number of files more than the last one left.
    for _ in range(5):
        before = _files(work)
        wanted = before + rng.randint(1, 9)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(texts), str(out), str(evals)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and _files(work) < wanted:
            time.sleep(0.002)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed_with_work += work.exists() and not out.exists()
        if out.exists():
            break
    assert killed_with_work >= 3
    build(section, out, progress=quiet)
    assert hashes(out) == hashes(tmp_path / "whole")
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def _files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
