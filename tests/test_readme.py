"""Every command in the README is run, block by block, in a folder as `make quickstart` leaves it.

The quickstart itself is run once, for two minutes; OVERLAND_QUICKSTART_RUN names a finished run to use instead. What
would train for long gets fewer steps, and says so in SHORTER.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
SHORTER = {
    "overland train pretrain": "--set pretrain.steps=4",
    "overland train sft": "--set sft.steps=2 --set oracles.tasks=4",
    "overland rl train": "--set rl.steps=1 --set rl.tasks_per_step=2 --set model=runs/quickstart/model",
    "overland corpus build recipes": "--set corpus.max_megabytes=0.4 --set corpus.tokenizer_megabytes=0.1",
    "overland eval": "--set output_tokens=128",
    "make quickstart": "ARGS=--dry-run",
    "make test": "ARGS=tests/test_import_floors.py",
}
"""Start of a command line -> what is added to it."""
ANSWER_OR_NOT = "overland agent"
"""A tiny model may come to no answer, which is exit 1 and no failure of the README."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's files, an environment that `make` finds complete, and runs/quickstart."""
    home = tmp_path_factory.mktemp("readme")
    for name in ("docs", "recipes", "examples", "tests", "src", "Makefile", "pyproject.toml", "constraints.txt"):
        (home / name).symlink_to(ROOT / name)
    venv = home / ".venv"
    venv.mkdir()
    for part in ("bin", "lib", "lib64", "pyvenv.cfg"):
        if (Path(sys.prefix) / part).exists():
            (venv / part).symlink_to(Path(sys.prefix) / part)
    (venv / ".installed").touch()
    finished = os.environ.get("OVERLAND_QUICKSTART_RUN")
    run = home / "runs/quickstart"
    if finished:
        shutil.copytree(finished, run)
    else:
        done = shell(home, "overland quickstart --minutes 2")
        assert done.returncode == 0, done.stdout + done.stderr
    return home


def shell(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script in bash, whose background jobs end with it."""
    trap = "set -euo pipefail; trap 'code=$?; set +e; kill $(jobs -p) 2>/dev/null; wait; exit $code' EXIT\n"
    path = f"{home / '.venv/bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", trap + script],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
    )


def commands(block: str) -> list[str]:
    """The command lines of a block, continued lines joined."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def shortened(line: str) -> str:
    more = next((words for start, words in SHORTER.items() if line.startswith(start)), "")
    background = line.endswith(" &")
    return f"{line.removesuffix(' &')} {more}".rstrip() + (" &" if background else "")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("block", BLOCKS, ids=[commands(block)[-1][:60] for block in BLOCKS])
def test_the_commands_do_what_the_readme_says(block: str, home: Path) -> None:
    script = "\n".join(shortened(line) for line in commands(block)).replace("8000", free_port())
    done = shell(home, script)
    allowed = (0, 1) if script.startswith(ANSWER_OR_NOT) else (0,)
    assert done.returncode in allowed, f"{script}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()


def test_commands_for_gpus_only_show_what_they_would_do() -> None:
    gpu = [line for block in BLOCKS for line in commands(block) if "cuda" in line or "gpu" in line]
    assert gpu
    assert all(line.endswith("--dry-run") for line in gpu)


def test_every_shortened_command_is_still_in_the_readme() -> None:
    lines = [line for block in BLOCKS for line in commands(block)]
    assert all(any(line.startswith(start) for line in lines) for start in SHORTER)
