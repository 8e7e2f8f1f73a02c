"""A running quickstart seen from outside: its processes, how far it is, and a signal at a chosen moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .program import ENVIRONMENT, command


@dataclass(frozen=True)
class Process:
    """One process, told from a later one with the same id by when it began."""

    pid: int
    began: str
    session: int

    @property
    def alive(self) -> bool:
        found = _stat(self.pid)
        return found is not None and found[19] == self.began and found[0] != "Z"


def below(root: int) -> list[Process]:
    """Every descendant, from the process table."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            children.setdefault(int(stat[1]), []).append(Process(int(name), stat[19], int(stat[3])))
    found, ahead = [], [root]
    while ahead:
        found += (own := children.get(ahead.pop(), []))
        ahead += [process.pid for process in own]
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: state, parent, group, session, ..., start time at 19."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


@dataclass(frozen=True)
class Seen:
    """What a moment is decided on."""

    run: Path
    said: Path
    pid: int

    def rows(self) -> list[dict[str, Any]]:
        return rows(self.run)

    def sandboxes(self) -> list[Process]:
        """Processes with a session of their own: what a sandbox starts, and nothing else here does."""
        return [process for process in below(self.pid) if process.session != self.pid]

    def other_rank(self) -> int:
        ranks = [p.pid for p in below(self.pid) if "spawn_main" in Path(f"/proc/{p.pid}/cmdline").read_text()]
        assert len(ranks) == 1
        return ranks[0]


Moment = Callable[[Seen], bool]


def rows(run: Path) -> list[dict[str, Any]]:
    """Whole lines of the metrics so far."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def says(words: str) -> Moment:
    return lambda seen: words in seen.said.read_text()


def wrote(stage: str, step: int) -> Moment:
    return lambda seen: any(r.get("stage") == stage and r.get("step", -2) >= step for r in seen.rows())


def begun(stage: str) -> Moment:
    return lambda seen: (seen.run / f"stages/{stage}.started.json").exists()


def finished(stage: str) -> Moment:
    return lambda seen: (seen.run / f"stages/{stage}.json").exists()


def rolls_out(seen: Seen) -> bool:
    return bool(seen.sandboxes())


def updates(seen: Seen) -> bool:
    """After a rollout, that is."""
    return not seen.sandboxes()


@dataclass(frozen=True)
class Stop:
    """`signal` to a terminal's foreground group, to the first process alone, or to the other rank alone."""

    signal: signal.Signals
    target: Literal["group", "first", "other rank"]
    after: tuple[Moment, ...]
    """Waited for in turn."""


def stopped(words: Sequence[str], home: Path, stop: Stop) -> tuple[int, str]:
    """Run the quickstart in `home`/run, stop it, see all its processes end; returns the exit code and what it said."""
    said = home / "said"
    with (
        open(said, "w") as stream,
        subprocess.Popen(
            command("quickstart", *words), cwd=home, stdout=stream, stderr=stream, env=ENVIRONMENT,
            start_new_session=True,
        ) as work,
    ):  # fmt: skip
        seen = Seen(home / "run", said, work.pid)
        until = time.monotonic() + 600
        for moment in stop.after:
            while not moment(seen):
                assert work.poll() is None, said.read_text()
                assert time.monotonic() < until, "the moment did not come"
                time.sleep(0.03)
        started = below(work.pid)
        if stop.target == "group":
            os.killpg(work.pid, stop.signal)
        else:
            os.kill(work.pid if stop.target == "first" else seen.other_rank(), stop.signal)
        code = work.wait(timeout=120)
    until = time.monotonic() + 60
    while left := [process for process in started if process.alive]:
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.05)
    return code, said.read_text()
