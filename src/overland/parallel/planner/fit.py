"""Setting the factors by measured runs: Gauss-Newton on log step times, with priors, robust to outliers.

The posterior mode of
    log(measured) = log(sum_terms seconds * prod(factors)) + noise,    log(factor) ~ Normal(log(prior), width)
with Huber's weights, every (model, GPU kind, precision) counting as the square root of its number of runs.
Deterministic: no sampling, a fixed number of iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overland.parallel.planner.factors import prior, terms
from overland.parallel.planner.job import Job
from overland.parallel.planner.memory import MemoryFit, memory

Array = NDArray[np.float64]
NOISE = 0.05  # in log: what the same run differs by between releases' patch levels
HUBER = 2.0  # in units of NOISE


@dataclass(frozen=True)
class Run:
    """A measured run: `step_s` seconds a step, `mem_gib` where it was given, `model` the family it is split by."""

    job: Job
    step_s: float
    mem_gib: float | None
    model: str


def fit_factors(runs: Sequence[Run]) -> dict[str, float]:
    """Factors by name, of those that these runs have."""
    system = _System(runs)
    theta = system.solve()
    return {name: float(np.exp(value)) for name, value in zip(system.names, theta, strict=True)}


def predict(job: Job, factors: dict[str, float]) -> float:
    """Seconds of a step under the given factors, their priors where one is missing."""
    total = 0.0
    for term in terms(job):
        value = term.seconds
        for name in term.factors:
            value *= factors.get(name, prior(name)[0])
        total += value
    return total


def left_out(runs: Sequence[Run], key: Callable[[Run], Hashable]) -> list[float]:
    """For every run predicted / measured - 1, by factors fitted on the runs whose key differs from its own."""
    errors = [0.0] * len(runs)
    for group in dict.fromkeys(map(key, runs)):
        factors = fit_factors([run for run in runs if key(run) != group])
        for at, run in enumerate(runs):
            if key(run) == group:
                errors[at] = predict(run.job, factors) / run.step_s - 1
    return errors


def fit_memory(runs: Sequence[Run], start: MemoryFit) -> MemoryFit:
    """The memory constants that bring the counted bytes nearest to the measured ones, in relative squares."""
    names = list(vars(start))
    known = [run for run in runs if run.mem_gib]
    weights = _weights(known)
    theta = np.log([getattr(start, name) for name in names])
    mu, width = theta.copy(), 0.5
    for _ in range(20):

        def residuals(at: Array) -> Array:
            fit = MemoryFit(**dict(zip(names, np.exp(at).tolist(), strict=True)))
            return np.array([np.log(memory(run.job, fit).gib / (run.mem_gib or 1.0)) for run in known])

        base = residuals(theta)
        jacobian = np.stack([(residuals(theta + 1e-4 * unit) - base) / 1e-4 for unit in np.eye(len(names))], axis=1)
        noise = 0.02
        hessian = np.eye(len(names)) / width**2 + jacobian.T @ (weights[:, None] * jacobian) / noise**2
        slope = -(theta - mu) / width**2 - jacobian.T @ (weights * base) / noise**2
        theta = theta + np.clip(np.linalg.solve(hessian, slope), -0.5, 0.5)
    return MemoryFit(**dict(zip(names, np.exp(theta).tolist(), strict=True)))


class _System:
    """The runs as one array of seconds [runs, terms] and one of which factors multiply each [runs, terms, factors]."""

    def __init__(self, runs: Sequence[Run]) -> None:
        rows = [terms(run.job) for run in runs]
        self.names = sorted({name for row in rows for term in row for name in term.factors})
        index = {name: at for at, name in enumerate(self.names)}
        widest = max(map(len, rows))
        self.seconds = np.zeros((len(rows), widest))
        self.uses = np.zeros((len(rows), widest, len(self.names)))
        for n, row in enumerate(rows):
            for t, term in enumerate(row):
                self.seconds[n, t] = term.seconds
                for name in term.factors:
                    self.uses[n, t, index[name]] += 1
        self.measured = np.log([run.step_s for run in runs])
        self.weights = _weights(runs)
        self.mu = np.log([prior(name)[0] for name in self.names])
        self.width = np.array([prior(name)[1] for name in self.names])

    def solve(self, iterations: int = 30) -> Array:
        theta = self.mu.copy()
        for _ in range(iterations):
            parts = self.seconds * np.exp(self.uses @ theta)
            total = parts.sum(axis=1)
            slope = np.einsum("nt,ntp->np", parts, self.uses) / total[:, None]
            residual = self.measured - np.log(total)
            weight = self.weights * np.minimum(1, HUBER * NOISE / np.maximum(np.abs(residual), 1e-9)) / NOISE**2
            hessian = np.diag(1 / self.width**2) + slope.T @ (weight[:, None] * slope)
            gradient = -(theta - self.mu) / self.width**2 + slope.T @ (weight * residual)
            theta = theta + np.clip(np.linalg.solve(hessian, gradient), -0.5, 0.5)
        return theta


def _weights(runs: Sequence[Run]) -> Array:
    """One over the square root of how many runs are of the same model, GPU kind and precision."""
    kinds = [(run.job.model.name, run.job.gpu.name, run.job.precision) for run in runs]
    counts = Counter(kinds)
    return np.array([counts[kind] ** -0.5 for kind in kinds])


def with_software(run: Run, software: str) -> Run:
    """The same run as if nobody had said which software it was."""
    return replace(run, job=replace(run.job, software=software))
