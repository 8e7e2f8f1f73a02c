"""Where a build runs changes nothing of what is built; a worker that dies is said and the build can go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from overland.corpus import CorpusSection, build
from overland.corpus.runners import open_runner
from overland.corpus.section import ScaleSection
from overland.errors import OverlandError, UsageError

from .conftest import SMALL, hashes, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]


def die(number: int) -> int:
    """A worker that the system kills at its third piece."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_worker_processes_build_the_same_bytes(folder: Folder, tmp_path: Path) -> None:
    texts = {f"{n}.txt": "SPDX-License-Identifier: CC0-1.0\n" + prose(n) + f"By {n}@example.org.\n" for n in range(12)}
    texts["copy.txt"] = texts["3.txt"] + "And more."
    root = folder({**texts, "LICENSE": "CC0 1.0 Universal"})
    for runner in ("here", "processes"):
        section = CorpusSection(text=(str(root),), scale={"runner": runner, "workers": 2}, **SMALL)
        build(section, tmp_path / runner, progress=quiet)
    assert hashes(tmp_path / "processes") == hashes(tmp_path / "here")


def test_results_come_in_order_and_a_killed_worker_is_named() -> None:
    with open_runner(ScaleSection(runner="processes", workers=1)) as runner:
        results = runner.map(die, range(6))
        assert next(results) == 0
        with pytest.raises(OverlandError, match="a worker process died"):
            list(results)


def test_ray_that_is_not_installed_says_how_to_get_it() -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match=r"overland\[ray\]"), open_runner(ScaleSection(runner="ray")):
            pass
    else:
        pytest.skip("Ray is installed here")
