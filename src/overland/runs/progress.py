"""Progress that a person can read: a bar with an ETA on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

QUIET_SECONDS = 30.0  # without a terminal, at most one line this often; after ten minutes ever more seldom
QUIET_SHARE = 0.05  # of the time so far


class Progress:
    """What `progress` yields. `advance(n, **figures)` moves it on and shows the newest figures."""

    def __init__(self, label: str, total: int | None, unit: str, clock: Callable[[], float]) -> None:
        self.label, self.total, self.unit, self.clock = label, total, unit, clock
        self.done = 0
        self.figures: dict[str, Any] = {}
        self.started = clock()

    def advance(self, n: int = 1, **figures: Any) -> None:
        self.done += n
        self.figures.update(figures)
        self._show()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    def _show(self) -> None:
        """Draw the new state."""

    def _open(self) -> None:
        """Draw the first state."""

    def _close(self, outcome: str) -> None:
        """Draw the last state; `outcome` is `done`, `stopped` or `failed`."""

    def _count(self) -> str:
        return f"{self.done:,}/{self.total:,}" if self.total is not None else f"{self.done:,}" if self.done else ""

    def _figures(self) -> str:
        return " ".join(f"{name} {_short(value)}" for name, value in self.figures.items())


class _Lines(Progress):
    """One line at the start, one at the end, between them at most one every 30 seconds: a hundred in a day."""

    def __init__(self, *args: Any, stream: TextIO) -> None:
        super().__init__(*args)
        self.stream = stream
        self.printed = self.started

    def _open(self) -> None:
        size = f" ({_plural(self.total, self.unit)})" if self.total is not None else ""
        self._print(f"{self.label}: started{size}")

    def _show(self) -> None:
        now = self.clock()
        if now - self.printed >= max(QUIET_SECONDS, QUIET_SHARE * self.elapsed()):
            self.printed = now
            left = ""
            if self.total and self.done:
                left = f", about {_duration(self.elapsed() / self.done * (self.total - self.done))} left"
            so_far = f"{self._count()} {self.unit}s, {_duration(self.elapsed())}{left}"
            self._print(f"{self.label}: {so_far}{self._newest()}")

    def _close(self, outcome: str) -> None:
        how_many = "" if self.total is None and not self.done else f", {self._count()} {self.unit}s"
        self._print(f"{self.label}: {outcome}{how_many} in {_duration(self.elapsed())}{self._newest()}")

    def _newest(self) -> str:
        return "".join(f", {name} {_short(value)}" for name, value in self.figures.items())

    def _print(self, line: str) -> None:
        print(line.rstrip(), file=self.stream, flush=True)


class _Bar(Progress):
    """A rich bar. It is taken down on every way out, so that Ctrl-C leaves a clean terminal."""

    def __init__(self, *args: Any, stream: TextIO) -> None:
        super().__init__(*args)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", style="dim"),
            console=Console(file=stream),
            refresh_per_second=4,
        )
        self.task = self.bar.add_task(self.label, total=self.total, count=self._count(), figures="")

    def _open(self) -> None:
        self.bar.start()

    def _show(self) -> None:
        self.bar.update(self.task, completed=self.done, count=self._count(), figures=self._figures())

    def _close(self, outcome: str) -> None:
        label = self.label if outcome == "done" else f"{self.label} ({outcome})"
        self.bar.update(self.task, description=label)
        self.bar.stop()


@contextmanager
def progress(
    label: str,
    total: int | None,
    unit: str = "step",
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Show how far a loop is, on stderr. `total` None means unknown. Exceptions and Ctrl-C pass through.

        with progress("pretrain", steps) as bar:
            for step in range(steps):
                ...
                bar.advance(loss=loss)
    """
    stream = sys.stderr if stream is None else stream
    kind = _Bar if stream.isatty() else _Lines
    shown = kind(label, total, unit, clock, stream=stream)
    shown._open()
    outcome = "failed"
    try:
        yield shown
        outcome = "done"
    except KeyboardInterrupt:
        outcome = "stopped"
        raise
    finally:
        shown._close(outcome)


class Deadline:
    """A moment after which work should stop. For waits and servers; never for anything that decides a result."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at = None if seconds is None else clock() + seconds

    def left(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return float("inf") if self.at is None else max(0.0, self.at - self.clock())

    def passed(self) -> bool:
        return self.left() <= 0.0


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e5) else f"{value:.3f}"
    return str(value)


def _plural(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
