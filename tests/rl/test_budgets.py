"""Effort budgets: K3's rule, measured on the starting policy, with a tau that may shrink."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overland.rl import Budgets, DomainSection, Group, RLSection
from overland.rl.section import EffortSection, EffortsSection

from .toy import make_sample

EFFORTS = EffortsSection(
    low=EffortSection(tau=0.5, tau_start=2.0, tau_steps=10), high=EffortSection(tau=1.0), max=EffortSection(tau=3.0)
)


def group(
    tokens: list[int], effort: str = "high", success: bool = True, reward: float | None = 1.0, **fields: object
) -> Group:
    base = make_sample("x", (1, 2), (3,), (-1.0,), reward, success)
    samples = [
        replace(base, id=str(i), output_tokens=n, thinking_tokens=n // 10, **fields)  # type: ignore[arg-type]
        for i, n in enumerate(tokens)
    ]
    return Group("web", 1, effort, "t", tuple(samples))


def test_b0_is_the_mean_spending_of_successes() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS))
    budgets.measure([group([10, 30]), group([500], success=False)])
    assert budgets.b0 == {("web", 1): 20.0}


def test_a_cell_without_success_still_gets_a_budget() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS))
    budgets.measure([group([10, 50], success=False)])
    assert budgets.b0 == {("web", 1): 30.0}


def test_overspending_replaces_the_reward_whatever_was_achieved() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS), {("web", 1): 20.0})
    priced = budgets.price(group([20, 21]), step=0)
    assert [s.reward for s in priced.samples] == [1.0, -1.0]
    assert [s.over_budget for s in priced.samples] == [False, True]
    assert [s.success for s in priced.samples] == [True, True]


def test_a_recipe_may_name_another_reward_for_overspending() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS, over_budget_reward=-0.25), {("web", 1): 20.0})
    assert budgets.price(group([21]), 0).samples[0].reward == -0.25


def test_low_effort_is_squeezed_step_by_step() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS), {("web", 1): 20.0})
    assert [budgets.limit("web", 1, "low", step) for step in (0, 5, 10, 99)] == [40.0, 25.0, 10.0, 10.0]
    assert budgets.limit("web", 1, "max", 0) == 60.0


def test_a_domain_may_count_thinking_tokens_only() -> None:
    section = RLSection(efforts=EFFORTS, domains={"web": DomainSection(count="thinking")})
    budgets = Budgets(section, {("web", 1): 20.0})
    assert [s.over_budget for s in budgets.price(group([200, 210]), 0).samples] == [False, True]


def test_an_unjudged_sample_is_never_priced() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS, parse_penalty=0.5), {("web", 1): 1.0})
    sample = budgets.price(group([99], reward=None, parse_errors=1), 0).samples[0]
    assert sample.reward is None
    assert not sample.over_budget


def test_a_malformed_turn_costs_its_penalty_once() -> None:
    budgets = Budgets(RLSection(efforts=EFFORTS, parse_penalty=0.5))
    assert budgets.price(group([5], parse_errors=3), 0).samples[0].reward == 0.5


def test_budgets_survive_a_checkpoint() -> None:
    budgets = Budgets(RLSection(), {("web", 1): 20.0, ("a/b", 0): 3.5})
    again = Budgets(RLSection())
    again.load_state_dict(budgets.state_dict())
    assert again.b0 == budgets.b0


def test_unmeasured_cells_have_no_budget() -> None:
    assert Budgets(RLSection()).limit("web", 9, "low", 50) == pytest.approx(float("inf"))
