"""The corpus on a two-node Ray cluster, and its Croissant file under mlcroissant, in an environment of their own.

OVERLAND_RAY_PEER names its Python (else ~/.cache/overland/peers/ray/bin/python); `make peers` makes it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.corpus.conftest import hashes, prose

PYTHON = Path(os.environ.get("OVERLAND_RAY_PEER", Path.home() / ".cache/overland/peers/ray/bin/python"))


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
