"""A question in a user's words made a Job, or refused with what would be valid."""

from __future__ import annotations

from difflib import get_close_matches

from overland.errors import UsageError
from overland.parallel.layout import Layout
from overland.parallel.planner.factors import SOFTWARE
from overland.parallel.planner.gpus import PRECISIONS, gpu
from overland.parallel.planner.job import Job
from overland.parallel.planner.models import architecture, truncated


def ask(
    model: str,
    kind: str,
    gpus: int,
    layout: str = "",
    mbs: int = 1,
    gbs: int = 0,
    tokens: int = 0,
    seq: int = 4096,
    precision: str = "bf16",
    software: str = "26.04",
    routing: str = "balanced",
    layers: int = 0,
) -> Job:
    """The Job that the command line's options describe; without a layout its own is not checked.

    `tokens` a batch may stand for `gbs`; without either a batch has two sequences a GPU, at least 1,024.
    Raises UsageError naming the option, its value and the nearest valid ones.
    """
    chosen = _one_of("--precision", precision.lower(), PRECISIONS)
    _one_of("--routing", routing, ("balanced", "natural"))
    _one_of("--software", software, SOFTWARE)
    for field, value in (("--gpus", gpus), ("--seq", seq), ("--mbs", mbs)):
        if value < 1:
            raise UsageError(f"{field} = {value} is not a whole number from 1")
    for field, value in (("--gbs", gbs), ("--tokens", tokens), ("--layers", layers)):
        if value < 0:
            raise UsageError(f"{field} = {value} is less than 0")
    if gbs and tokens:
        raise UsageError(f"--gbs = {gbs} and --tokens = {tokens}: give one of them")
    if tokens % seq:
        near = sorted({max(1, tokens // seq) * seq, (tokens // seq + 1) * seq})
        raise UsageError(
            f"--tokens = {tokens} is no multiple of --seq = {seq}; nearest valid: {', '.join(map(str, near))}"
        )
    found = architecture(model)
    if layers:
        found = truncated(found, layers)
    batch = gbs or tokens // seq or max(1024, 2 * gpus)
    balanced = routing == "balanced"
    job = Job(found, gpu(kind), gpus, Layout.parse(layout), seq, batch, mbs, chosen, balanced, software)
    job.gpu.peak(chosen)
    if layout:
        job.check()
    return job


def _one_of(field: str, value: str, valid: tuple[str, ...]) -> str:
    if value not in valid:
        near = get_close_matches(value, valid, 3, 0.4) or valid
        raise UsageError(f"{field} = {value!r}; nearest valid: {', '.join(near)}")
    return value
