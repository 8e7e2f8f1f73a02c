"""The corpus on a two-node Ray cluster and under datatrove, and its Croissant file under mlcroissant.

Each in an environment of its own, which `make peers` makes; OVERLAND_RAY_PEER and OVERLAND_DATATROVE_PEER name their
Pythons (else ~/.cache/overland/peers/NAME/bin/python).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.corpus.conftest import hashes, prose

PYTHON = Path(os.environ.get("OVERLAND_RAY_PEER", Path.home() / ".cache/overland/peers/ray/bin/python"))

DATATROVE = Path(os.environ.get("OVERLAND_DATATROVE_PEER", Path.home() / ".cache/overland/peers/datatrove/bin/python"))


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with Ray and mlcroissant at {PYTHON}; see make peers")
def test_two_ray_nodes_build_the_same_bytes_and_croissant_is_valid(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "LICENSE").write_text("CC0 1.0 Universal")
    for number in range(80):
        (texts / f"{number}.txt").write_text(prose(number, 150) + f"By {number}@example.org.\n")
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("ray_corpus.py")), str(texts), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["nodes"] == 2
    assert said["rows"] == 80
    assert said["errors"] == []
    assert hashes(tmp_path / "out" / "ray") == hashes(tmp_path / "out" / "here")


@pytest.mark.slow
@pytest.mark.skipif(not DATATROVE.exists(), reason=f"no environment with datatrove at {DATATROVE}; see make peers")
def test_datatrove_s_executor_builds_the_same_bytes(tmp_path: Path) -> None:
    # Two sources are two pieces at least, so that both tasks of a step have one.
    for part in ("a", "b"):
        folder = tmp_path / part
        folder.mkdir()
        (folder / "LICENSE").write_text("CC0 1.0 Universal")
        for number in range(20):
            (folder / f"{number}.txt").write_text(prose(f"{part}{number}", 150) + f"By {number}@example.org.\n")
    script = Path(__file__).with_name("datatrove_corpus.py")
    done = subprocess.run(
        [str(DATATROVE), str(script), str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["read"] == said["finished"] == 2
    assert hashes(tmp_path / "out" / "steps") == hashes(tmp_path / "out" / "here")
    assert not (tmp_path / "out" / ".steps.work").exists()
