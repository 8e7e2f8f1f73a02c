"""Every command of docs/parallel.md runs as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/parallel.md"
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_run(command: str, tmp_path: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "overland"
    done = subprocess.run([sys.executable, "-m", "overland", *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
