"""Meters at known loads; alarms that fire once, say what to do, and stop a hopeless run."""

from __future__ import annotations

import math

import pytest
import torch

from overland.errors import OverlandError
from overland.train import Alarms, ExpertLoad, LossSpike, NonFinite, Throughput, bits_per_byte, utilisation
from overland.train.meters import expert_metrics


def test_an_even_load_is_one_and_a_single_expert_is_the_worst() -> None:
    even = utilisation(torch.full((8,), 5))
    assert even == {"max_over_mean": 1.0, "min_over_mean": 1.0, "dead": 0.0, "entropy": pytest.approx(1.0)}
    one = utilisation(torch.tensor([40] + [0] * 7))
    assert (one["max_over_mean"], one["min_over_mean"], one["dead"]) == (8.0, 0.0, 7.0)
    assert one["entropy"] == pytest.approx(0.0)


def test_the_worst_layer_is_reported_and_shares_sum_to_one() -> None:
    found = expert_metrics([torch.tensor([1, 1]), torch.tensor([3, 1])], shares=True)
    assert found["moe/load_max_over_mean"] == 1.5
    assert found["moe/shares/1"] == [0.75, 0.25]
    assert expert_metrics([]) == {}


def test_throughput_is_taken_over_a_window() -> None:
    now = iter([0.0, 1.0, 2.0, 4.0])
    meter = Throughput(window=2, clock=lambda: next(now))
    assert [meter.step(10), meter.step(10), meter.step(10)] == [10.0, 10.0, pytest.approx(20 / 3)]


def test_bits_per_byte_of_uniform_bytes_is_eight() -> None:
    assert bits_per_byte(100 * math.log(256), 100) == pytest.approx(8.0)


def test_a_spike_is_noticed_and_ordinary_noise_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    alarm = LossSpike()
    for step in range(300):
        assert alarm.check(step, 3.0 - step / 200 + 0.1 * torch.randn(1, generator=generator).item()) is None
    found = alarm.check(300, 6.0)
    assert found is not None
    assert found.message.startswith("step 300: loss 6 is")
    assert "lower lr" in found.message
    assert alarm.check(301, 1.5) is None


def test_ten_times_almost_nothing_is_no_spike() -> None:
    alarm = LossSpike()
    for step in range(30):
        assert alarm.check(step, 3e-4) is None
    assert alarm.check(30, 6e-3) is None
    assert alarm.check(31, 0.2) is not None


def test_steps_that_are_not_finite_are_skipped_then_stop_the_run() -> None:
    alarm = NonFinite(patience=3)
    for step, (loss, norm) in enumerate([(float("nan"), 1.0), (1.0, float("inf"))]):
        found = alarm.check(step, loss, norm)
        assert found is not None
        assert "skipped" in found.message
    assert alarm.check(2, 1.0, 1.0) is None
    assert (alarm.skipped, alarm.in_a_row) == (2, 0)
    alarm.check(3, float("nan"), 1.0)
    alarm.check(4, float("nan"), 1.0)
    with pytest.raises(OverlandError, match=r"step 5: loss is nan for the 3th step in a row; stopped.*Lower lr"):
        alarm.check(5, float("nan"), 1.0)


def test_dead_and_overloaded_experts_are_named_once_each_time_it_starts() -> None:
    alarm = ExpertLoad(window=2, overload=3.0)
    good, bad = [torch.tensor([5, 5, 5, 5])], [torch.tensor([19, 1, 0, 0])]
    said = [[a.kind for a in alarm.check(step, c)] for step, c in enumerate([bad, bad, bad, bad, good, good, bad, bad])]
    both = ["dead_experts", "overloaded_experts"]
    assert said == [[], both, [], [], [], [], [], both]
    alarm = ExpertLoad(window=1)
    assert "expert layer 0 sent no token to experts 2, 3 in 1 steps" in alarm.check(7, bad)[0].message


def test_alarms_continue_after_a_resume_as_if_nothing_had_happened() -> None:
    losses = [2.0 + 0.01 * (i % 5) for i in range(40)] + [9.0]
    load = [torch.tensor([5, 0])]
    one, two = Alarms(), Alarms()
    kinds = []
    for step, loss in enumerate(losses):
        kinds.append([a.kind for a in one.check(step, loss, 1.0, load)[1]])
    for step, loss in enumerate(losses):
        if step == 23:
            state = two.state_dict()
            two = Alarms()
            two.load_state_dict(state)
        assert [a.kind for a in two.check(step, loss, 1.0, load)[1]] == kinds[step]
    assert [kind for raised in kinds for kind in raised] == ["dead_experts", "loss_spike"]
