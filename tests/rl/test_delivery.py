"""Weights that did not arrive whole end the run; a sample's age is one number for everybody."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overland.engine import Engine
from overland.errors import OverlandError
from overland.rl import Group, RLSection
from overland.rl.delivery import check_delivery, checksum
from overland.rl.staleness import age, age_figures, without_stale
from overland.runs import RunFolder
from tests.tiny import tiny

from .test_algorithms import SECTION, run_of
from .test_resume import PartialCredit, fresh
from .toy import make_sample


def test_a_shared_and_a_copied_model_are_accepted() -> None:
    model = tiny(torch.float32)
    shared, copied = Engine(model), Engine(copy.deepcopy(model))
    for engine in (shared, copied):
        engine.load_weights(model, 3)
        check_delivery(model, engine, 3)


def test_one_weight_that_did_not_arrive_is_noticed() -> None:
    model = tiny(torch.float32)
    engine = Engine(copy.deepcopy(model))
    engine.load_weights(model, 1)
    before = checksum(model)
    next(model.parameters()).data.view(-1)[5] += 1e-6
    assert checksum(model) != before
    with pytest.raises(OverlandError, match="version 1 reached the sampler changed"):
        check_delivery(model, engine, 1)
    with pytest.raises(OverlandError, match="says version 1, the trainer handed over 2"):
        check_delivery(model, engine, 2)


def test_a_sampler_that_computes_otherwise_is_noticed_by_the_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(torch.float32)
    engine = Engine(model)
    engine.load_weights(model, 1)
    monkeypatch.setattr(engine, "score", lambda ids: [-1.0] * (len(ids) - 1))
    with pytest.raises(OverlandError, match="score the canary"):
        check_delivery(model, engine, 1)


def test_age_counts_from_the_oldest_token_and_old_samples_take_no_part() -> None:
    samples = [replace(make_sample(str(v), (1,), (2,), (-1.0,), 1.0), policy_version=v) for v in (5, 3, 4)]
    group = Group("toy", 0, "high", "t", tuple(samples))
    assert [age(s, 5) for s in samples] == [0, 2, 1]
    assert [s.reward for s in without_stale([group], 5, 1)[0].samples] == [1.0, None, 1.0]
    assert age_figures([group], 5, 1) == {"rl/age_mean": 1.0, "rl/age_max": 2.0, "rl/stale": 1 / 3}


class Late(PartialCredit):
    """Every sample was written two updates ago."""

    def run(self, orders, version):  # type: ignore[no-untyped-def]
        groups = super().run(orders, version)
        old = max(0, version - 2)
        return [g.with_samples([replace(s, policy_version=old) for s in g.samples]) for g in groups]


def test_the_gate_and_the_figures_say_the_same(tmp_path: Path) -> None:
    for allowed, rows in ((2, True), (1, False)):
        section: RLSection = SECTION.model_copy(update={"steps": 3, "max_age": allowed})
        run_of(tmp_path / str(allowed), section, rollouts=Late(fresh(), 3))
        last = [r for r in RunFolder(tmp_path / str(allowed)).read_metrics() if "rl/age_max" in r][-1]
        assert last["rl/age_max"] == 2
        assert last["rl/stale"] == float(not rows)
        assert bool(last["rl/rows"]) is rows
