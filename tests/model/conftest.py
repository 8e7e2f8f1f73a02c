"""Where the shared cases lie: OVERLAND_CASES, or ../shared/cases beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cases() -> Path:
    folder = Path(os.environ.get("OVERLAND_CASES") or Path(__file__).parents[3] / "shared" / "cases")
    if not (folder / "k3_tiny" / "expected.json").is_file():
        pytest.skip(f"no shared cases under {folder}; OVERLAND_CASES names the folder that holds k3_tiny/")
    return folder
