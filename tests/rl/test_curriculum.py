"""Shares hold over any run of steps; levels follow their pass rates, and none of them vanishes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.errors import UsageError
from overland.rl import Curriculum, DomainSection, Group, RLSection
from overland.rl.curriculum import PassRates
from overland.rl.section import EffortSection, EffortsSection

from .toy import make_sample

LEVELS = {"terminal": (0, 1, 2), "web": (0, 1)}
SECTION = RLSection(
    domains={"terminal": DomainSection(share=3), "web": DomainSection(share=1)},
    efforts=EffortsSection(low=EffortSection(share=1), high=EffortSection(share=2), max=EffortSection(share=1)),
)


@given(steps=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_domains_and_efforts_get_their_exact_shares(steps: list[int]) -> None:
    curriculum = Curriculum(SECTION, LEVELS)
    orders = [order for count in steps for order in curriculum.deal(count)]
    dealt = Counter((o.domain, o.effort) for o in orders)
    for (domain, effort), share in curriculum.shares.items():
        exact = len(orders) * share / 16
        assert abs(dealt[domain, effort] - exact) < 2


def test_a_solved_domain_leaves_its_place_to_those_that_still_teach() -> None:
    curriculum = Curriculum(SECTION.model_copy(update={"curriculum_domains": True, "curriculum_floor": 0.1}), LEVELS)
    for domain, variance in [("terminal", 0.0), ("web", 1.0)]:
        for level in LEVELS[domain]:
            cells = [(domain, level, effort) for effort in ("low", "high", "max")]
            curriculum.rates.rate |= dict.fromkeys(cells, 0.5)
            curriculum.rates.variance |= dict.fromkeys(cells, variance)
    orders = curriculum.deal(400)
    dealt = Counter((order.domain, order.effort) for order in orders)
    web = sum(count for (domain, _), count in dealt.items() if domain == "web")
    assert web == pytest.approx(400 * 1 / (1 + 3 * 0.1), abs=2)  # the recipe gives terminal three times web's share
    assert dealt["web", "high"] == pytest.approx(web / 2, abs=2)
    again = Curriculum(curriculum.section, LEVELS)
    again.load_state_dict(curriculum.state_dict())
    assert again.deal(20) == curriculum.deal(20)


def test_task_seeds_never_repeat_and_deals_do_not_depend_on_how_they_are_cut() -> None:
    once = Curriculum(SECTION, LEVELS).deal(40)
    other = Curriculum(SECTION, LEVELS)
    assert [*other.deal(7), *other.deal(33)] == once
    assert len({order.seed for order in once}) == 40


def test_a_curriculum_restored_from_a_checkpoint_deals_the_same_tasks() -> None:
    first = Curriculum(SECTION, LEVELS)
    first.deal(13)
    first.rates.rate["web", 1, "low"], first.rates.variance["web", 1, "low"] = 0.25, 0.5
    again = Curriculum(SECTION, LEVELS)
    again.load_state_dict(first.state_dict())
    assert again.deal(20) == first.deal(20)


def test_levels_with_mixed_outcomes_come_most_often_and_the_others_never_vanish() -> None:
    curriculum = Curriculum(RLSection(group_size=8, curriculum_floor=0.15), {"web": (0, 1, 2)})
    for effort in ("low", "high", "max"):
        curriculum.rates.variance |= {("web", 0, effort): 0.0, ("web", 1, effort): 1.0, ("web", 2, effort): 0.0}
    levels = Counter(order.level for order in curriculum.deal(2000))
    assert levels[1] / 2000 == pytest.approx(1 / 1.3, abs=0.05)
    assert levels[0] / 2000 == pytest.approx(0.15 / 1.3, abs=0.03)
    assert levels[2] / 2000 == pytest.approx(0.15 / 1.3, abs=0.03)


@given(outcomes=st.lists(st.lists(st.booleans(), min_size=2, max_size=8), min_size=1), floor=st.floats(0.01, 1))
def test_weights_are_bounded(outcomes: list[list[bool]], floor: float) -> None:
    rates = PassRates(memory=0.8)
    rates.update(group_of(each) for each in outcomes)
    assert floor <= rates.weight(("web", 0, "low"), floor) <= 1.0


def test_a_level_of_tasks_that_are_solved_or_hopeless_teaches_nothing() -> None:
    rates = PassRates(memory=0.8)
    rates.update([group_of([True] * 4), group_of([False] * 4)])
    assert rates.rate["web", 0, "low"] == pytest.approx(0.8)
    rates.update([group_of([True] * 4), group_of([False] * 4)] * 6)
    assert rates.weight(("web", 0, "low"), 0.1) == 0.1


def test_pass_rates_forget_slowly_and_ignore_unjudged_samples() -> None:
    rates = PassRates(memory=0.8)
    rates.update([group_of([True], lost=1)])
    assert rates.rate["web", 0, "low"] == 1.0
    rates.update([group_of([True, False], lost=1)])
    assert rates.rate["web", 0, "low"] == pytest.approx(0.9)
    rates.update([group_of([], lost=1)])
    assert rates.rate["web", 0, "low"] == pytest.approx(0.9)
    assert rates.variance["web", 0, "low"] == pytest.approx((0.5 * 0.8 + 0.0 * 0.2) * 0.8 + 1.0 * 0.2)


def group_of(outcomes: list[bool], lost: int = 0) -> Group:
    """A group whose samples succeeded or failed, and some that have no reward."""
    judged = [make_sample(str(i), (1, 2), (3,), (-1.0,), float(good), good) for i, good in enumerate(outcomes)]
    unjudged = [replace(make_sample(f"lost{i}", (1, 2), (3,), (-1.0,), 0.0, False), reward=None) for i in range(lost)]
    return Group("web", 0, "low", "t", (*judged, *unjudged))


def test_every_cell_is_measured_before_the_first_step() -> None:
    curriculum = Curriculum(SECTION.model_copy(update={"tasks_per_step": 40}), LEVELS)
    orders = curriculum.measuring()
    assert Counter((o.domain, o.level, o.effort) for o in orders) == dict.fromkeys(
        [(d, level, e) for d in LEVELS for level in LEVELS[d] for e in ("low", "high", "max")], 3
    )


def test_a_level_or_domain_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match=r"rl\.domains\.web\.levels: 7 is not a level of web; it has 0, 1"):
        Curriculum(RLSection(domains={"web": DomainSection(levels=(7,))}), LEVELS)
    with pytest.raises(UsageError, match=r"rl\.domains\.wbe names no taskset"):
        Curriculum(RLSection(domains={"wbe": DomainSection()}), LEVELS)
