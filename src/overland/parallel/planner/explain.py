"""Why a layout is what it is, what would help, and where expert parallel overtakes tensor parallel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp

from overland.errors import UsageError
from overland.parallel.planner.architecture import Architecture
from overland.parallel.planner.factors import RELEASES, log_factor
from overland.parallel.planner.gpus import GPU
from overland.parallel.planner.job import Job
from overland.parallel.planner.prediction import Prediction, natural, predict, step_seconds


@dataclass(frozen=True)
class Change:
    """One thing done otherwise: the step's time over the one it was (None where it cannot be), and a remark."""

    what: str
    ratio: float | None
    remark: str = ""

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.what}: {self.remark}"
        return f"{self.what}: {self.ratio - 1:+.1%}" + (f" ({self.remark})" if self.remark else "")


def neighbours(best: Prediction) -> list[Change]:
    """What one step aside would cost: a degree doubled or halved, sharded parameters or whole, less recomputation."""
    layout, job = best.job.layout, best.job
    tried: list[tuple[str, Job]] = []
    for name in ("tp", "pp", "vp", "ep", "cp"):
        value = getattr(layout, name)
        for other in (value // 2 if value % 2 == 0 else 0, value * 2):
            if other:
                tried.append((f"{name}={other}", job.with_layout(**{name: other})))
    if job.dp > 1 and layout.vp == 1:
        tried.append(("fsdp=0", job.with_layout(fsdp=0)) if layout.fsdp else ("fsdp=dp", job.with_layout(fsdp=job.dp)))
    milder = {"full": "selective", "selective": "none"}.get(layout.recompute)
    if milder:
        tried.append((f"recompute={milder}", job.with_layout(recompute=milder)))
    tried += [(f"mbs={mbs}", replace(job, mbs=mbs)) for mbs in (job.mbs // 2, job.mbs * 2) if mbs]
    changes = []
    for what, other in tried:
        if what.split("=")[0] in ("tp", "pp", "cp") and layout.fsdp:
            other = other.with_layout(fsdp=max(1, other.dp))
        try:
            found = predict(other)
        except UsageError:
            continue
        if found.fits:
            changes.append(Change(what, found.step_s / best.step_s, f"limit: {found.limit}"))
        else:
            changes.append(Change(what, None, f"does not fit, {found.memory.gib:.0f} GiB"))
    return sorted(changes, key=lambda change: (change.ratio is None, change.ratio or 0.0))


def remedies(best: Prediction) -> list[Change]:
    """What the step would gain from better links, memory, software or a larger batch, best first."""
    job, gpu = best.job, best.job.gpu
    tried = [
        ("network twice as fast", replace(job, gpu=replace(gpu, network=2 * gpu.network))),
        ("NVLink twice as fast", replace(job, gpu=replace(gpu, nvlink=2 * gpu.nvlink))),
        ("HBM twice as fast", replace(job, gpu=replace(gpu, hbm=2 * gpu.hbm))),
    ]
    if job.software in RELEASES and job.software != RELEASES[-1]:
        tried.append((f"software {RELEASES[-1]} for {job.software}", replace(job, software=RELEASES[-1])))
    changes = [Change(what, sum(step_seconds(other).values()) / best.step_s) for what, other in tried]
    doubled = replace(job, gbs=2 * job.gbs)
    per_token = sum(step_seconds(doubled).values()) / 2 / best.step_s
    changes.append(Change("a batch twice as large, per token", per_token))
    if job.model.experts and job.layout.ep > 1:
        changes.append(Change("natural instead of balanced routing", natural(best), "a balanced expert plan avoids it"))
    return sorted((change for change in changes if abs((change.ratio or 1) - 1) > 0.002), key=lambda c: c.ratio or 0)


@dataclass(frozen=True)
class BreakEven:
    """Ranks from which expert parallel beats tensor parallel for the experts: by bytes k * Z / D, and by time."""

    by_bytes: float
    by_time: int | None

    def __str__(self) -> str:
        time = "never within one NVLink domain" if self.by_time is None else f"from {self.by_time} GPUs"
        return (
            f"expert parallel moves fewer bytes than tensor parallel from k * Z / D = {self.by_bytes:.3g} GPUs, "
            f"and is predicted faster {time}"
        )


def break_even(model: Architecture, gpu: GPU) -> BreakEven | None:
    """Tensor against expert parallel for one MoE block inside an NVLink domain; None for a model without experts.

    Both hold 1/N of the experts. Tensor parallel gathers everyone's tokens, so a rank sends 2 (N - 1) D bytes for each
    token of its own in each of 4 exchanges and permutes N times as many rows; expert parallel sends the k copies,
    2 k Z (N - 1) / N.
    """
    block = next((block for block in model.blocks() if block.experts), None)
    if block is None:
        return None
    k, Z, D = block.top_k, block.routed, model.hidden
    nvlink, hbm = gpu.nvlink * 1e9, gpu.hbm * 1e9
    tensor, dispatch, permute = (exp(log_factor(name)) for name in ("tensor", "dispatch", "permute"))
    rows = permute * 16 * k * Z / hbm

    def faster(n: int) -> bool:
        by_tensor = tensor * 8 * D * (n - 1) / nvlink + n * rows
        by_expert = dispatch * 8 * k * Z * (n - 1) / n / nvlink + rows
        return by_expert < by_tensor

    return BreakEven(k * Z / D, next((n for n in range(2, gpu.domain + 1) if faster(n)), None))
