"""The machinery learns, and only from its rewards: the curve of reference/rl.md 5.3 cut down to seconds.

Reverse four letters, one turn, GRPO on a character transformer. The control gets the same rewards shuffled inside each
group: the same amount of gradient with no information in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from overland.rl import RLResult, RLSection, expert_iteration, rejection_sampling, train_rl
from overland.rl.section import EffortSection, EffortsSection, WatchdogSection
from overland.runs import RunFolder

from .toy import TinyTransformer, ToyRollouts, evaluate, warm_up

ONLY_HIGH = EffortsSection(
    low=EffortSection(share=0), high=EffortSection(tau=9, output_tokens=8), max=EffortSection(share=0)
)
SECTION = RLSection(
    steps=30,
    tasks_per_step=16,
    group_size=8,
    lr=1e-3,
    efforts=ONLY_HIGH,
    checkpoint_every=0,
    max_empty_steps=30,  # the control may collapse; here that is a result, not an accident
    watchdogs=WatchdogSection(patience=30),
)


@pytest.fixture(scope="module")
def started() -> TinyTransformer:
    """A model after SFT that reverses about a third of the prompts."""
    torch.manual_seed(1)
    model = TinyTransformer()
    assert 0.25 < warm_up(model, until=0.3, seed=1) < 0.5
    return model


def trained(started: TinyTransformer, folder: Path, shuffled: bool) -> tuple[float, list[dict[str, float]]]:
    model = copy.deepcopy(started)
    run = RunFolder(folder)
    train_rl(model, None, None, {}, SECTION, run, rollouts=ToyRollouts(model, 8, shuffled))
    return evaluate(model), [row for row in run.read_metrics() if "rl/success" in row]


@pytest.mark.slow
def test_success_rises_with_true_rewards_and_not_with_shuffled_ones(started: TinyTransformer, tmp_path: Path) -> None:
    before = evaluate(started)
    after, rows = trained(started, tmp_path / "true", shuffled=False)
    control, _ = trained(started, tmp_path / "shuffled", shuffled=True)
    assert after >= before + 0.4
    assert control <= before + 0.1
    updates = [row for row in rows if row["rl/rows"]]
    assert max(row["rl/mismatch_kl"] for row in updates) < 1e-6
    assert updates[-1]["rl/entropy"] < updates[0]["rl/entropy"]


@pytest.mark.slow
@pytest.mark.parametrize("control", [rejection_sampling, expert_iteration])
def test_a_control_learns_within_its_processor_seconds(
    control: Callable[..., RLResult], started: TinyTransformer, tmp_path: Path
) -> None:
    model = copy.deepcopy(started)
    run = RunFolder(tmp_path)
    result = control(model, None, None, {}, SECTION, run, cpu_seconds=2.0, rollouts=ToyRollouts(model, 8))
    assert result.stopped == "cpu_seconds"
    assert 2.0 <= result.cpu_seconds < 4.0
    assert evaluate(model) > evaluate(started) + 0.1


def test_rejection_sampling_without_time_still_ends_with_a_step(started: TinyTransformer, tmp_path: Path) -> None:
    model = copy.deepcopy(started)
    run = RunFolder(tmp_path)
    result = rejection_sampling(model, None, None, {}, SECTION, run, cpu_seconds=1e-6, rollouts=ToyRollouts(model, 8))
    assert result.steps == 1
