"""The table of measured runs, where this checkout has it beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.planner import read_runs
from overland.parallel.planner.fit import Run


def published_runs() -> Path | None:
    """`shared/data/published_runs.csv` of the nearest folder above the tests that has it."""
    for folder in Path(__file__).resolve().parents:
        found = folder / "shared/data/published_runs.csv"
        if found.is_file():
            return found
    return None


@pytest.fixture(scope="session")
def table() -> Path:
    """The table itself; skips where it is not there."""
    found = published_runs()
    if found is None:
        pytest.skip("needs shared/data/published_runs.csv, which is not in the repository")
    return found


@pytest.fixture(scope="session")
def runs(table: Path) -> list[Run]:
    """The measured runs that the planner can express."""
    return read_runs(table)
