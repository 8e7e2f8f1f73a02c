"""What the planner says of one layout: time, where it goes, memory, and what limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Any

from overland.parallel.planner.architecture import flops_per_token
from overland.parallel.planner.factors import log_factor, terms
from overland.parallel.planner.job import Job
from overland.parallel.planner.memory import Memory, MemoryFit, memory

RESERVE_GIB = 2.0  # the driver, NCCL's buffers and what else the allocator does not see
USABLE = 0.95

# What a person would call the limit, and the kinds of work that are it.
LIMITS = {
    "matrix products": ("product", "experts", "head"),
    "attention": ("attention", "scan"),
    "memory traffic": ("elementwise", "spread", "permute", "routing", "expert_weights"),
    "launches": ("kernels", "fixed"),
    "all-to-all": ("dispatch", "across"),
    "tensor-parallel messages": ("tensor",),
    "context-parallel messages": ("context",),
    "pipeline messages": ("pipeline",),
    "data-parallel messages": ("gather", "reduce"),
    "optimiser": ("optimizer",),
}


@dataclass(frozen=True)
class Prediction:
    """`seconds` by kind of work, the bubble's share taken out of each and shown as its own."""

    job: Job
    seconds: dict[str, float]
    memory: Memory

    @property
    def step_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.job.gbs * self.job.seq / self.job.ranks / self.step_s

    @property
    def tflops_per_gpu(self) -> float:
        """Model FLOPs (causal attention, experts as executed, no recomputation) per second, in TFLOP/s."""
        return self.tokens_per_s_per_gpu * flops_per_token(self.job.model, self.job.seq) / 1e12

    @property
    def mfu(self) -> float:
        """Against the dense peak of the precision that the products run in."""
        return self.tflops_per_gpu / self.job.gpu.tflops[self.job.precision]

    @property
    def shares(self) -> dict[str, float]:
        """Share of the step by what a person would call it, the bubble included, largest first."""
        found = {name: sum(self.seconds.get(kind, 0.0) for kind in kinds) for name, kinds in LIMITS.items()}
        found["pipeline bubble"] = self.seconds.get("bubble", 0.0)
        total = self.step_s
        return {name: value / total for name, value in sorted(found.items(), key=lambda item: -item[1]) if value}

    @property
    def limit(self) -> str:
        return next(iter(self.shares))

    @property
    def fits(self) -> bool:
        return self.memory.gib <= capacity_gib(self.job)

    def to_json(self) -> dict[str, Any]:
        shares = self.shares
        return {
            "layout": str(self.job.layout),
            "mbs": self.job.mbs,
            "dp": self.job.dp,
            "micro_batches": self.job.micro_batches,
            "step_s": self.step_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "mem_gib": self.memory.gib,
            "fits": self.fits,
            "bubble": shares.get("pipeline bubble", 0.0),
            "all_to_all": shares.get("all-to-all", 0.0),
            "limit": self.limit,
            "shares": shares,
            "memory_gib": {name: value / 2**30 for name, value in vars(self.memory).items()},
        }


def capacity_gib(job: Job) -> float:
    """What a layout may take of a GPU's memory."""
    return job.gpu.memory * USABLE - RESERVE_GIB


def step_seconds(job: Job) -> dict[str, float]:
    """Predicted seconds of a step by kind of work, `bubble` apart."""
    found: dict[str, float] = {}
    once = ("reduce", "optimizer", "fixed")
    for term in terms(job):
        seconds = term.seconds * _factor(term.factors)
        if term.kind not in once and job.bubble:
            work = seconds / (1 + job.bubble)
            found["bubble"] = found.get("bubble", 0.0) + seconds - work
            seconds = work
        found[term.kind] = found.get(term.kind, 0.0) + seconds
    return found


def predict(job: Job) -> Prediction:
    """Time and memory of a job as asked; raises UsageError where it cannot be laid out so."""
    job.check()
    return Prediction(job, step_seconds(job), memory(job, MemoryFit.fitted()))


def natural(prediction: Prediction) -> float:
    """Step time over the balanced one when routing is left as it falls."""
    job = replace(prediction.job, balanced=False)
    even = replace(prediction.job, balanced=True)
    return sum(step_seconds(job).values()) / sum(step_seconds(even).values())


_products: dict[tuple[str, ...], float] = {}


def _factor(names: tuple[str, ...]) -> float:
    if names not in _products:
        _products[names] = exp(sum(map(log_factor, names)))
    return _products[names]
