"""N steps equal k steps, a stop, a resume and N - k steps: bit for bit, figures and episodes included."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from overland.errors import BrokenFileError
from overland.rl import Group, Order, RLSection, Sample, train_rl
from overland.runs import RunFolder, read_jsonl_zst

from .toy import LENGTH, TinyTransformer, ToyRollouts, answer_of

SECTION = RLSection(
    steps=7, tasks_per_step=6, group_size=4, lr=1e-3, epochs=2, minibatches=2, checkpoint_every=3, min_variance=0.0
)
TIMINGS = ("rl/seconds_rollout", "rl/seconds_update", "rl/cpu_seconds")


class PartialCredit(ToyRollouts):
    """Reward by letters in place, so that an untrained model has variance to learn from."""

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        groups = super().run(orders, version)
        return [g.with_samples([_partial(s) for s in g.samples]) for g in groups]


class Killed(PartialCredit):
    """Dies in the rollout of a step, as a kill would."""

    def __init__(self, model: nn.Module, group_size: int, at: int) -> None:
        super().__init__(model, group_size)
        self.at = at

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        if version == self.at:
            raise KeyboardInterrupt
        return super().run(orders, version)


def _partial(sample: Sample) -> Sample:
    wanted = answer_of(sample.ids[: LENGTH + 1])
    right = sum(a == b for a, b in zip(sample.ids[LENGTH + 1 :], wanted, strict=True))
    return replace(sample, reward=right / len(wanted), success=right > 2)


def fresh() -> TinyTransformer:
    torch.manual_seed(3)
    return TinyTransformer()


def train(run: RunFolder, kill_at: int | None = None, resume: bool = False) -> nn.Module:
    model = fresh()
    rollouts = PartialCredit(model, 4) if kill_at is None else Killed(model, 4, kill_at)
    train_rl(model, None, None, {}, SECTION, run, rollouts=rollouts, resume=resume)
    return model


def rows(run: RunFolder) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k not in TIMINGS} for row in run.read_metrics()]


@pytest.mark.parametrize("kill_at", [1, 3, 5])
def test_a_killed_and_resumed_run_is_the_same_run(tmp_path: Path, kill_at: int) -> None:
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    straight = train(whole)
    with pytest.raises(KeyboardInterrupt):
        train(cut, kill_at=kill_at)
    resumed = train(cut, resume=True)
    for (name, a), b in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert rows(cut) == rows(whole)
    names = sorted(p.name for p in whole.episodes.iterdir())
    assert sorted(p.name for p in cut.episodes.iterdir()) == names
    for name in names:
        assert list(read_jsonl_zst(cut.episodes / name)) == list(read_jsonl_zst(whole.episodes / name))


class Interrupted(PartialCredit):
    """Ctrl-C arrives during the rollout of a step."""

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        if version == 2:
            signal.raise_signal(signal.SIGINT)
        return super().run(orders, version)


def test_ctrl_c_finishes_the_step_and_saves_it(tmp_path: Path) -> None:
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    straight = train(whole)
    model = fresh()
    with pytest.raises(KeyboardInterrupt):
        train_rl(model, None, None, {}, SECTION, cut, rollouts=Interrupted(model, 4))
    assert rows(cut)[-1]["step"] == 3
    resumed = train(cut, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    assert rows(cut) == rows(whole)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    first = train(run)
    before = rows(run)
    again = train(run, resume=True)
    assert rows(run) == before
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    result = train_rl(again, None, None, {}, SECTION, run, rollouts=PartialCredit(again, 4), resume=True)
    assert (result.steps, result.stopped) == (7, "steps")
    assert result.figures["rl/success"] == before[-1]["rl/success"]
    assert result.tokens == 7 * 6 * 4 * (LENGTH + 1)


def test_starting_again_without_resume_leaves_one_line_a_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    train(run)
    before = rows(run)
    train(run)
    assert rows(run) == before


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    train(run)
    newest = sorted((run.checkpoints / "rl").iterdir())[-1]
    victim = next(f for f in sorted(newest.iterdir()) if f.name.endswith(".distcp"))
    victim.write_bytes(victim.read_bytes()[:-7])
    with pytest.raises(BrokenFileError, match=victim.name):
        train(run, resume=True)
