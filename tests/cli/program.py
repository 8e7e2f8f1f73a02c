"""How tests call the program: as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "BROWSER": "true", "COLUMNS": "110"}


class Overland(Protocol):
    """`overland("model", "info", "nano", cwd=folder)` -> exit code and what came out, as text."""

    def __call__(
        self, *words: str, cwd: Path | None = None, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]: ...


def command(*words: str) -> list[str]:
    """The command line that runs the program of this interpreter."""
    return [sys.executable, "-m", "overland", *words]


def run(*words: str, cwd: Path | None = None, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**ENVIRONMENT, **environment},
    )
