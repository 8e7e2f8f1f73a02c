"""Progress: few plain lines without a terminal, a bar on one, clean on Ctrl-C."""

from __future__ import annotations

import io

import pytest

from overland.runs import Deadline, progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_line_is_printed_at_most_every_thirty_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with progress("pretrain", 100, stream=stream, clock=clock) as bar:
        for step in range(100):
            clock.now += 1.0
            bar.advance(loss=2.0 - step / 100)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "pretrain: started (100 steps)"
    assert lines[1] == "pretrain: 30/100 steps, 30.0 s, about 1 min 10 s left, loss 1.710"
    assert lines[-1] == "pretrain: done, 100/100 steps in 1 min 40 s, loss 1.010"
    assert len(lines) == 5


def test_ctrl_c_passes_through_and_says_how_far_it_came() -> None:
    stream = io.StringIO()

    def interrupted() -> None:
        with progress("sft", 10, stream=stream, clock=Clock()) as bar:
            bar.advance(4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().splitlines()[-1] == "sft: stopped, 4/10 steps in 0.0 s"


def test_on_a_terminal_a_bar_shows_count_and_figures_and_is_taken_down_on_failure() -> None:
    stream = Terminal()

    def failing() -> None:
        with progress("rl", 3, stream=stream) as bar:
            bar.advance(2, reward=0.5)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        failing()
    text = stream.getvalue()
    assert "2/3" in text
    assert "reward 0.500" in text
    assert text.endswith("\x1b[?25h")  # the cursor is shown again


def test_an_unknown_total_is_no_error() -> None:
    for stream in (io.StringIO(), Terminal()):
        with progress("files", None, "file", stream=stream) as bar:
            bar.advance()
        assert bar.done == 1


def test_a_deadline_passes_when_its_seconds_are_over() -> None:
    clock = Clock()
    deadline = Deadline(2.0, clock)
    assert (deadline.left(), deadline.passed()) == (2.0, False)
    clock.now = 2.5
    assert (deadline.left(), deadline.passed()) == (0.0, True)
    assert not Deadline(None).passed()
