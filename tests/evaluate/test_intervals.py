"""Intervals against published examples and statsmodels 0.15.0 / scipy 1.17.1 values (computed once, written below)."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from overland.errors import UsageError
from overland.evaluate.intervals import bootstrap_difference, paired_difference, pass_at_k, wilson


@pytest.mark.parametrize(
    "successes, n, low, high",
    [  # statsmodels.stats.proportion.proportion_confint(successes, n, method="wilson")
        (0, 10, 0.0, 0.27753279986288926),
        (10, 10, 0.7224672001371106, 1.0),
        (3, 10, 0.10779126740630104, 0.6032218525388546),
        (240, 300, 0.7510710762322137, 0.8413431410330587),
        # Newcombe 1998 (Statistics in Medicine 17:857-872), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
    ],
)
def test_wilson_interval_equals_published_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert interval.estimate == successes / n
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


@pytest.mark.parametrize("n", [5, 20, 60])
def test_wilson_interval_covers_about_95_percent_on_average(n: int) -> None:
    rates = [i / 200 for i in range(1, 200)]
    covered = 0.0
    for rate in rates:
        for s in range(n + 1):
            if wilson(s, n).low <= rate <= wilson(s, n).high:
                covered += comb(n, s) * rate**s * (1 - rate) ** (n - s)
    assert 0.94 < covered / len(rates) < 0.965


def test_no_tasks_say_nothing() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def outcomes(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    before = [True] * (both + lost) + [False] * (gained + neither)
    after = [True] * both + [False] * lost + [True] * gained + [False] * neither
    return before, after


@pytest.mark.parametrize(
    "table, low, high, p_value",
    [
        # Altman et al. 2000, Statistics with Confidence, table 6.2: 0.011 to 0.226 (there first minus second)
        ((14, 5, 0, 22), -0.226, -0.011, 0.0625),
        # Fagerland, Lydersen & Laake 2014, airway hyperresponsiveness: 0.0256 to 0.507
        ((1, 1, 7, 12), 0.0256, 0.507, 0.0703125),
    ],
)
def test_paired_difference_equals_published_examples(
    table: tuple[int, int, int, int], low: float, high: float, p_value: float
) -> None:
    paired = paired_difference(*outcomes(*table))
    assert paired.difference.low == pytest.approx(low, abs=6e-4)
    assert paired.difference.high == pytest.approx(high, abs=6e-4)
    assert paired.p_value == pytest.approx(p_value)  # statsmodels mcnemar(exact=True)


def test_paired_difference_agrees_with_the_bootstrap_on_many_tasks() -> None:
    before, after = outcomes(400, 40, 90, 270)
    exact, drawn = paired_difference(before, after).difference, bootstrap_difference(before, after, seed=1)
    assert exact.estimate == pytest.approx(drawn.estimate)
    assert exact.low == pytest.approx(drawn.low, abs=0.006)
    assert exact.high == pytest.approx(drawn.high, abs=0.006)


def test_pairing_is_narrower_than_two_separate_intervals_when_outcomes_agree() -> None:
    paired = paired_difference(*outcomes(200, 5, 10, 85)).difference
    separate = (wilson(210, 300).high - wilson(205, 300).low) - (wilson(210, 300).low - wilson(205, 300).high)
    assert paired.high - paired.low < separate / 3


def test_swapping_before_and_after_mirrors_the_interval() -> None:
    before, after = outcomes(20, 3, 9, 11)
    forth, back = paired_difference(before, after).difference, paired_difference(after, before).difference
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))


def test_bootstrap_depends_on_nothing_but_the_seed() -> None:
    before, after = [0.1, 0.5, 0.25, 0.9, 0.3], [0.2, 0.45, 0.8, 0.95, 0.35]
    assert bootstrap_difference(before, after, seed=3) == bootstrap_difference(before, after, seed=3)
    assert bootstrap_difference(before, after, seed=3) != bootstrap_difference(before, after, seed=4)


def test_pass_at_k_equals_enumerating_every_draw() -> None:
    for n in range(1, 7):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                draws = list(combinations([True] * correct + [False] * (n - correct), k))
                assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(UsageError, match="successes = 5 of n = 4"):
        wilson(5, 4)
    with pytest.raises(UsageError, match="same tasks"):
        paired_difference([True], [])
    with pytest.raises(UsageError, match="pass@3"):
        pass_at_k(2, 1, 3)
    with pytest.raises(UsageError, match="confidence"):
        wilson(1, 2, confidence=95)
