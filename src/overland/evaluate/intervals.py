"""How sure a success rate is: intervals for one proportion, for a paired difference, and pass@k.

Sources: Wilson 1927 (score interval); Newcombe 1998, Statistics in Medicine 17:2635-2650, method 10 (paired
difference); Chen et al. 2021, "Evaluating large language models trained on code", eq. 1 (unbiased pass@k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from random import Random
from statistics import NormalDist

from overland.errors import UsageError


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds around it."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """The same tasks solved twice: `difference` is after minus before, in -1..1."""

    difference: Interval
    n: int
    gained: int
    """Tasks failed before and solved after."""
    lost: int
    """Tasks solved before and failed after."""
    p_value: float
    """Exact two-sided McNemar test: the chance of a split this uneven if neither were better."""


def wilson(successes: float, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for `successes` out of `n`; honest at 0 and n, where the normal interval is empty.

    `n` of 0 says nothing: estimate 0, interval 0..1.
    """
    if n < 0 or not 0 <= successes <= n:
        raise UsageError(f"successes = {successes} of n = {n}: a count of successes lies between 0 and n")
    if n == 0:
        return Interval(0.0, 0.0, 1.0)
    z = _z(confidence)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # Rounding may leave 1e-17 where the bound is exactly 0 or 1.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(p, low, high)


def paired_difference(before: Sequence[bool], after: Sequence[bool], confidence: float = 0.95) -> Paired:
    """After minus before on the same tasks, in the same order: Newcombe's method 10 and McNemar's exact test."""
    if len(before) != len(after) or not before:
        raise UsageError(
            f"paired outcomes: {len(before)} before, {len(after)} after; give the same tasks in the same order"
        )
    n = len(before)
    both = sum(b and a for b, a in zip(before, after, strict=True))
    lost = sum(b and not a for b, a in zip(before, after, strict=True))
    gained = sum(a and not b for b, a in zip(before, after, strict=True))
    neither = n - both - lost - gained

    first, second = wilson(both + lost, n, confidence), wilson(both + gained, n, confidence)
    phi = _phi(both, lost, gained, neither)
    delta = second.estimate - first.estimate

    def reach(down: float, up: float) -> float:
        return sqrt(max(0.0, down * down - 2 * phi * down * up + up * up))

    low = delta - reach(second.estimate - second.low, first.high - first.estimate)
    high = delta + reach(first.estimate - first.low, second.high - second.estimate)
    return Paired(Interval(delta, max(-1.0, low), min(1.0, high)), n, gained, lost, _mcnemar(gained, lost))


def bootstrap_difference(
    before: Sequence[float], after: Sequence[float], *, seed: int = 0, draws: int = 2000, confidence: float = 0.95
) -> Interval:
    """Percentile bootstrap of mean(after - before) over paired tasks, for scores that are not yes or no."""
    if len(before) != len(after) or not before:
        raise UsageError(
            f"paired scores: {len(before)} before, {len(after)} after; give the same tasks in the same order"
        )
    gaps = [a - b for b, a in zip(before, after, strict=True)]
    random, n = Random(seed), len(gaps)
    means = sorted(sum(random.choices(gaps, k=n)) / n for _ in range(draws))
    tail = (1 - confidence) / 2
    return Interval(sum(gaps) / n, means[int(tail * (draws - 1))], means[round((1 - tail) * (draws - 1))])


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that at least one of k samples, drawn without replacement from n of which `correct` pass, passes."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise UsageError(f"pass@{k} of n = {n} samples, {correct} correct: k must lie in 1..n and correct in 0..n")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise UsageError(f"confidence = {confidence}: give a number between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _phi(both: int, lost: int, gained: int, neither: int) -> float:
    """Newcombe's correlation of the two outcomes, corrected for continuity only where it is positive."""
    n = both + lost + gained + neither
    margins = (both + lost) * (gained + neither) * (both + gained) * (lost + neither)
    if margins == 0:
        return 0.0
    cross = both * neither - lost * gained
    if cross > n / 2:
        cross_corrected = cross - n / 2
    else:
        cross_corrected = float(min(cross, 0))
    return cross_corrected / sqrt(margins)


def _mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact binomial test that the discordant pairs split evenly."""
    discordant = gained + lost
    tail = sum(comb(discordant, i) for i in range(min(gained, lost) + 1)) / 2**discordant
    return min(1.0, 2 * tail)
