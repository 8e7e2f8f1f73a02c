"""Data-parallel ranks: the figures of one process, and a clear end when a rank fails or is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from overland.errors import OverlandError
from overland.runs import RunFolder
from overland.train import Ranks, SFTSection, in_ranks, sft

from .helpers import nano, toy_dialogues


def _collectives(ranks: Ranks) -> tuple[list[float], list[int], bool, list[int]]:
    shared = [*ranks.share([5, 6, 7])]
    return ranks.sum(1.0, float(ranks.rank)), ranks.gather(ranks.rank), ranks.any(ranks.rank == 1), shared


def _tune(ranks: Ranks, folder: str) -> list[float]:
    run = RunFolder(folder, writes=ranks.writes)
    section = SFTSection(steps=3, batch=8, members=4, warmup=1, checkpoint_every=5, balance_bins=200)
    model = nano()
    sft(model, toy_dialogues(12), section, run)
    ranks.check_equal(model)
    return [row["sft/loss"] for row in run.read_metrics()] if ranks.writes else []


def _fail(ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise ValueError("the other rank's own words")
    ranks.sum(1.0)


def _fail_while_the_first_is_busy(ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise ValueError("the other rank's own words")
    while dist.is_initialized():  # until the watch has seen the death and taken the group away
        time.sleep(0.05)
    ranks.gather(0)


def _die(ranks: Ranks) -> None:
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while dist.is_initialized():
        time.sleep(0.05)
    Ranks.current().sum(1.0)  # not a single rank that goes on alone


def _fail_first(ranks: Ranks) -> None:
    if ranks.rank == 0:
        raise RuntimeError("the first rank's own words")
    ranks.sum(1.0)


def test_one_rank_needs_no_process_group() -> None:
    assert in_ranks(1, _collectives) == ([1.0, 0.0], [0], False, [5, 6, 7])


@pytest.mark.slow
def test_two_ranks_agree_on_sums_objects_and_flags() -> None:
    assert in_ranks(2, _collectives) == ([2.0, 1.0], [0, 1], True, [5, 7])


@pytest.mark.slow
def test_two_ranks_give_the_losses_of_one_and_write_one_run(tmp_path: Path) -> None:
    alone = in_ranks(1, _tune, str(tmp_path / "one"))
    together = in_ranks(2, _tune, str(tmp_path / "two"))
    assert together[0] == pytest.approx(alone[0], rel=1e-6)  # the same gradient; then Adam magnifies the last bits
    assert together == pytest.approx(alone, rel=2e-3)
    assert len(alone) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "words"),
    [
        (_fail, "the other rank's own words"),
        (_fail_while_the_first_is_busy, "the other rank's own words"),
        (_die, r"rank 1 was killed \(SIGKILL\).* --resume"),
    ],
)
def test_a_rank_that_fails_or_is_killed_ends_the_run_soon(work: object, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(OverlandError, match=words):
        in_ranks(2, work)  # type: ignore[arg-type]
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_what_the_first_rank_fails_of_is_not_blamed_on_another() -> None:
    with pytest.raises(RuntimeError, match="the first rank's own words"):
        in_ranks(2, _fail_first)
    assert Ranks.current().world == 1
