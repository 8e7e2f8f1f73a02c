"""The factors of the time model: how many times its time at peak a thing takes, before the fit and after it.

Priors are what the field reports (achieved GEMM and attention rates, overlapped communication), wide enough for the
measured runs to move them. The fitted values are data: `coefficients.json`, written by `benchmarks/planner.py --fit`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from overland.parallel.planner.job import Job
from overland.parallel.planner.work import micro_batch_work, step_work

COEFFICIENTS = Path(__file__).with_name("coefficients.json")
RELEASES = ("25.09", "25.11", "26.02", "26.04", "26.06", "26.08")
STACKS = ("torchtitan", "megatron-0.14", "modelzoo")
SOFTWARE = ("typical", *RELEASES, *STACKS)

# name, or its beginning: (factor, width in log). The longest beginning that fits is taken.
PRIORS: dict[str, tuple[float, float]] = {
    "product/bf16": (1.4, 0.3),
    "product/fp8": (1.6, 0.3),
    "product/mxfp8": (1.7, 0.3),
    "product/nvfp4": (2.6, 0.3),
    "product/nvfp4/moe": (1.35, 0.3),  # recipes keep part of such a model in wider types
    "product/hopper": (1.15, 0.2),
    "product/ampere": (1.0, 0.2),
    "product/software": (1.0, 0.15),
    "clock/b200": (1.08, 0.1),  # power limits: 1.0, 1.1, 1.2 and 1.4 kW
    "clock/b300": (1.04, 0.1),
    "clock/gb200": (1.0, 0.1),
    "clock/gb300": (0.92, 0.1),
    "experts": (1.2, 0.4),
    "attention/hopper": (1.9, 0.25),
    "attention/ampere": (1.6, 0.25),
    "attention/blackwell": (1.9, 0.25),
    "attention/torchtitan": (3.0, 0.3),  # FlashAttention-2 through SDPA
    "scan": (5.0, 0.4),
    "elementwise": (1.5, 0.4),
    "quantise": (1.3, 0.3),  # casts beside the elementwise work
    "unfused": (2.0, 0.4),  # experts with biases and a clamped activation miss the fused path
    "spread": (1.0, 0.3),
    "routing": (1.5, 0.5),
    "kernels/dense": (1.0, 0.6),
    "kernels/moe": (3.0, 0.6),
    "permute": (1.5, 0.4),
    "expert_weights": (1.3, 0.3),
    "dispatch": (1.5, 0.4),
    "across/exposed": (1.0, 0.4),
    "across/overlapped": (0.5, 0.4),  # one micro-batch's messages behind another's products: needs interleaving
    "tensor": (0.8, 0.4),
    "context": (0.8, 0.5),
    "head": (1.5, 0.15),
    "pipeline": (0.3, 0.5),
    "gather": (1.0, 0.5),
    "reduce": (0.6, 0.5),
    "optimizer": (1.5, 0.4),
    "fixed": (1.0, 0.5),
    "software/dense": (1.0, 0.08),
    "software/moe": (1.0, 0.3),
    "software/stack": (1.0, 0.5),
    "software/kind": (1.0, 0.2),
}


@dataclass(frozen=True)
class Term:
    """One addend of a step's time: seconds at peak, and the factors that multiply it."""

    kind: str
    seconds: float
    factors: tuple[str, ...]


def prior(name: str) -> tuple[float, float]:
    """(factor, width in log) before any fit."""
    known = [start for start in PRIORS if name == start or name.startswith(f"{start}/")]
    return PRIORS[max(known, key=len)]


def terms(job: Job) -> list[Term]:
    """A step of this job as addends. The bubble lengthens everything that micro-batches do."""
    repeats = job.micro_batches * (1 + job.bubble)
    named = _Names(job)
    found = [Term(kind, seconds * repeats, named(kind)) for kind, seconds in micro_batch_work(job).items()]
    found += [Term(kind, seconds, (kind,)) for kind, seconds in step_work(job).items() if seconds]
    return [*found, Term("fixed", 0.01, ("fixed",))]


class _Names:
    """Which factors apply to a kind of work of this job."""

    def __init__(self, job: Job) -> None:
        generation, precision, software = job.gpu.generation, job.precision, job.software
        moe = job.model.experts > 0
        clock = (f"clock/{job.gpu.name}",) if generation == "blackwell" else ()
        product: tuple[str, ...] = (f"product/{precision}",)
        if generation != "blackwell":
            product += (f"product/{generation}",)
        if precision == "nvfp4" and moe:
            product += ("product/nvfp4/moe",)
        overhead: tuple[str, ...] = ()
        if software in RELEASES:
            overhead = (f"software/{'moe' if moe else 'dense'}/{software}",)
            if moe:
                links = "nvl72" if job.gpu.domain > 8 else "nvl8"
                overhead += (f"software/kind/{software}/{links}/{'gated' if job.model.gated else 'plain'}",)
        elif software in STACKS:
            overhead = (f"software/stack/{software}",)
            product += (f"product/software/{software}",)
        attention = "torchtitan" if software == "torchtitan" else generation
        elementwise = ("elementwise", *overhead, *clock)
        if precision != "bf16":
            elementwise += ("quantise",)
        if job.model.expert_biases:
            elementwise += ("unfused",)
        self.by_kind = {
            "product": product + clock,
            "experts": (*product, "experts", *clock),
            "attention": (f"attention/{attention}", *clock),
            "scan": ("scan", *clock),
            "elementwise": elementwise,
            "spread": (*elementwise, "spread"),
            "routing": ("routing", *overhead, *clock),
            "kernels": (f"kernels/{'moe' if moe else 'dense'}", *overhead),
            "permute": ("permute", *overhead, *clock),
            "dispatch": ("dispatch", *overhead),
            "across": ("across/overlapped" if job.layout.vp > 1 else "across/exposed",),
            "head": ("head", *clock),
        }

    def __call__(self, kind: str) -> tuple[str, ...]:
        return self.by_kind.get(kind, (kind,))


@cache
def coefficients() -> dict[str, Any]:
    """The fitted file: `factors` by name, `memory`, and where they come from."""
    return json.loads(COEFFICIENTS.read_text(encoding="utf-8"))


def log_factor(name: str) -> float:
    """Log of a factor: fitted where a measured run has it, else its prior."""
    fitted = coefficients()["factors"].get(name)
    return log(fitted if fitted is not None else prior(name)[0])
