"""A collapsing run stops with its reason; a run that cannot learn is refused before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from overland.errors import OverlandError
from overland.rl import Collapse, Group, Order, RLSection, Sample, Watchdogs, WatchdogSection, train_rl
from overland.runs import RunFolder, read_jsonl_zst

from .toy import TinyTransformer, ToyRollouts

HEALTHY = {
    "rl/mismatch_kl": 1e-7,
    "rl/grad_norm": 0.5,
    "rl/success": 0.4,
    "rl/entropy": 0.3,
    "rl/parse_failures": 0.05,
}


@pytest.mark.parametrize(
    ("figure", "value", "says"),
    [
        ("rl/mismatch_kl", 0.5, "disagree"),
        ("rl/mismatch_kl", float("nan"), "disagree"),
        ("rl/grad_norm", float("inf"), "gradient norm"),
        ("rl/grad_norm", 1e4, "gradient norm"),
    ],
)
def test_fast_alarms_trip_at_once(figure: str, value: float, says: str) -> None:
    watchdogs = Watchdogs(WatchdogSection())
    watchdogs.check(1, HEALTHY)
    with pytest.raises(Collapse, match=says):
        watchdogs.check(2, {**HEALTHY, figure: value})


@pytest.mark.parametrize(
    ("figure", "value", "says"),
    [
        ("rl/success", 0.0, "no episode has succeeded for 3 steps"),
        ("rl/entropy", 1e-4, "entropy"),
        ("rl/parse_failures", 1.0, "malformed"),
    ],
)
def test_slow_alarms_trip_after_a_streak_and_forget_it_when_it_breaks(figure: str, value: float, says: str) -> None:
    watchdogs = Watchdogs(WatchdogSection(patience=3))
    bad = {**HEALTHY, figure: value}
    for figures in (bad, bad, HEALTHY, bad, bad):
        watchdogs.check(1, figures)
    resumed = Watchdogs(WatchdogSection(patience=3))
    resumed.load_state_dict(watchdogs.state_dict())
    with pytest.raises(Collapse, match=says):
        resumed.check(6, bad)


def test_low_entropy_is_no_alarm_once_the_tasks_are_solved() -> None:
    watchdogs = Watchdogs(WatchdogSection(patience=1))
    watchdogs.check(1, {**HEALTHY, "rl/entropy": 0.0, "rl/success": 0.95})


class Rewards(ToyRollouts):
    """Every sample gets `reward`, except in the first `mixed` batches (the first one is the measuring batch), where
    half of each group succeed. `shift` falsifies the sampler's log-probabilities."""

    def __init__(self, model: nn.Module, reward: float | None, mixed: int = 0, shift: float = 0.0) -> None:
        super().__init__(model, 8)
        self.reward, self.mixed, self.shift = reward, mixed, shift

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        groups = super().run(orders, version)
        self.mixed -= 1
        return [g.with_samples([self._change(s, i) for i, s in enumerate(g.samples)]) for g in groups]

    def _change(self, sample: Sample, index: int) -> Sample:
        reward = float(index % 2) if self.mixed >= 0 else self.reward
        logprobs = tuple(p + self.shift if t else 0.0 for p, t in zip(sample.logprobs, sample.trained, strict=True))
        return replace(sample, reward=reward, success=bool(reward), logprobs=logprobs)


def train(folder: Path, rollouts: Rewards, **fields: object) -> None:
    section = RLSection(steps=6, tasks_per_step=4, **fields)  # type: ignore[arg-type]
    train_rl(rollouts.model, None, None, {}, section, RunFolder(folder), rollouts=rollouts)


@pytest.fixture
def model() -> TinyTransformer:
    torch.manual_seed(0)
    return TinyTransformer()


@pytest.mark.parametrize(
    ("reward", "says"),
    [(0.0, "run more SFT"), (1.0, "choose harder levels"), (None, "outside the policy")],
)
def test_a_start_without_variance_is_refused_with_advice(
    tmp_path: Path, model: TinyTransformer, reward: float | None, says: str
) -> None:
    with pytest.raises(OverlandError, match=says):
        train(tmp_path, Rewards(model, reward))
    assert not (tmp_path / "checkpoints").exists()


def test_batches_with_nothing_to_compare_end_a_run_that_is_not_solved(tmp_path: Path, model: TinyTransformer) -> None:
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(OverlandError, match="no group had variance in 2 batches in a row"):
        train(tmp_path, Rewards(model, 0.0, mixed=1), max_empty_steps=2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_solved_run_ends_early_and_says_so(tmp_path: Path, model: TinyTransformer) -> None:
    rollouts = Rewards(model, 1.0, mixed=1)
    section = RLSection(steps=6, tasks_per_step=4, max_empty_steps=2)
    result = train_rl(model, None, None, {}, section, RunFolder(tmp_path), rollouts=rollouts)
    assert (result.steps, result.stopped) == (2, "solved")


def test_a_sampler_with_other_weights_is_noticed_in_the_first_step(tmp_path: Path, model: TinyTransformer) -> None:
    with pytest.raises(Collapse, match="sampler holds other weights") as caught:
        train(tmp_path, Rewards(model, 1.0, mixed=2, shift=0.5))
    kept = tmp_path / str(caught.value).rpartition("kept in ")[2].rstrip(")")
    assert len(list(read_jsonl_zst(kept))) == 32
