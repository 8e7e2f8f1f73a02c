"""All layouts worth asking about, predicted and ranked by step time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from overland.errors import OverlandError
from overland.parallel.layout import RECOMPUTE, Layout
from overland.parallel.planner.job import Job
from overland.parallel.planner.memory import MemoryFit, memory
from overland.parallel.planner.prediction import Prediction, capacity_gib, predict, step_seconds

MOST_UNEVEN = 1.15
MICRO_BATCHES = (1, 2, 4, 8)
CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12)


@dataclass(frozen=True)
class Ranking:
    """Layouts that fit, fastest first; `asked` counts those looked at, `too_large` those of them that do not fit."""

    best: list[Prediction]
    asked: int
    too_large: int


def rank(job: Job, count: int = 10) -> Ranking:
    """The `count` fastest layouts of this job's model, cluster and batch; its own layout and mbs are ignored.

    Of the recomputations only the mildest that fits is taken. Raises OverlandError where nothing fits.
    """
    fit, capacity = MemoryFit.fitted(), capacity_gib(job)
    timed: list[tuple[float, Job]] = []
    asked = too_large = 0
    least = float("inf")
    for candidate in candidates(job):
        asked += 1
        for recompute in RECOMPUTE:
            tried = candidate.with_layout(recompute=recompute)
            needed = memory(tried, fit).gib
            if needed <= capacity:
                timed.append((sum(step_seconds(tried).values()), tried))
                break
        else:
            too_large += 1
            least = min(least, needed)
    if not timed:
        room = f"{job.gpu.name} has {capacity:.0f} GiB to give"
        if not asked:
            raise OverlandError(
                f"--gbs = {job.gbs} with --gpus = {job.ranks}: no layout gives every rank a whole sequence; "
                "take a larger batch or fewer GPUs"
            )
        raise OverlandError(
            f"--gpus = {job.ranks} {job.gpu.name}: no layout of {job.model.name} fits; the smallest needs "
            f"{least:.0f} GiB a GPU and {room}. Take more GPUs or larger ones."
        )
    timed.sort(key=lambda pair: (pair[0], str(pair[1].layout)))
    return Ranking([predict(found) for _, found in timed[:count]], asked, too_large)


def candidates(job: Job) -> Iterator[Job]:
    """Jobs over the layouts that `check` lets pass and that nobody would rule out unseen."""
    model, ranks = job.model, job.ranks
    wide = min(8, job.gpu.domain)
    for tp in (1, 2, 4, 8):
        if tp > wide or ranks % tp or any(heads % tp for heads in model.heads):
            continue
        for cp in _powers(16) if job.seq > 16384 else (1,):
            if job.seq % (cp * tp) or job.seq // cp < 4096:
                continue
            for pp in _powers(64):
                if ranks % (tp * cp * pp) or pp > len(model.layers):
                    continue
                dp = ranks // (tp * cp * pp)
                if job.gbs % dp:
                    continue
                for ep in _expert_degrees(job, ranks // pp):
                    base = Layout(tp=tp, pp=pp, ep=ep, cp=cp)
                    yield from _filled(replace(job, layout=base), dp)


def _filled(job: Job, dp: int) -> Iterator[Job]:
    """This job's layout with every useful number of chunks, sharding and micro-batch size."""
    for vp in CHUNKS if job.layout.pp > 1 else (1,):
        chunked = job.with_layout(vp=vp)
        if job.layout.pp * vp > len(job.model.layers) + 2 or chunked.uneven > MOST_UNEVEN:
            continue
        for fsdp in (0, dp) if dp > 1 and vp == 1 else (0,):
            for mbs in MICRO_BATCHES:
                tried = replace(chunked.with_layout(fsdp=fsdp), mbs=mbs)
                if (job.gbs // dp) % mbs == 0 and (tried.micro_batches >= job.layout.pp or job.layout.pp == 1):
                    yield tried


def _expert_degrees(job: Job, stage: int) -> list[int]:
    experts = job.model.experts
    return [ep for ep in range(1, experts + 1) if experts % ep == 0 and stage % ep == 0] if experts else [1]


def _powers(largest: int) -> tuple[int, ...]:
    return tuple(2**at for at in range(largest.bit_length()))
