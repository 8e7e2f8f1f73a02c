"""What one training step asks of a rank: products, attention, memory traffic, messages, in seconds at the maker's peak.

A step's time is then a weighted sum of these; the weights (how far from its peak a thing runs, how little of it is
overlapped) are the factors of `factors.py`. Nothing in this file is fitted.

Communication of one rank, in bytes (t tokens a rank and micro-batch, D hidden, Z routed width, k experts a token):
  tensor parallel   8 gathers or scatters a layer, 4 a block: 4 * t * D * 2 * (tp - 1) / tp
  expert parallel   dispatch and combine, forward and backward: 4 * (t / tp) * k * Z * 2 * (ep - 1) / ep
  context parallel  keys and values there, their gradients back: 3 * t * KV / tp * 2 * (cp - 1)
  pipeline          activation there, gradient back, a chunk: 2 * vp * (t / tp) * D * 2
  data parallel     gradients scattered (4 bytes), parameters gathered (2): 6 * shard * (dp - 1) / dp a step;
                    FSDP gathers parameters twice and scatters gradients once a micro-batch
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from overland.parallel.planner.architecture import Architecture, Block, matmul_flops
from overland.parallel.planner.gpus import GPU
from overland.parallel.planner.job import Job
from overland.parallel.planner.routing import imbalance

PER_BLOCK = 1e-4  # seconds: the unit in which launches and host work of a block are counted


def micro_batch_work(job: Job) -> dict[str, float]:
    """Seconds at peak of one micro-batch on one pipeline rank, forward and backward, by kind of work."""
    layout, gpu, model, t = job.layout, job.gpu, job.model, job.tokens
    own = t / layout.tp  # tokens whose activations lie on this rank
    hbm = gpu.hbm * 1e9
    peak, peak16 = gpu.peak(job.precision), gpu.peak("bf16")
    passes = 4 if layout.recompute == "full" else 3  # a backward pass is two forward ones
    work: dict[str, float] = {}

    def add(kind: str, seconds: float) -> None:
        if seconds:
            work[kind] = work.get(kind, 0.0) + seconds

    for block, count in block_counts(model):
        dense, routed, routed_numel = _split(block)
        busiest = 1.0 if job.balanced else imbalance(block.experts, layout.ep)
        add("product", count * passes * dense * own / peak)
        add("experts", count * passes * routed * own / peak * busiest)
        mixing = count * (passes + 0.5) * block.core_flops(job.seq) * own / peak16
        add("attention" if block.core else "scan", mixing)
        # written, read, and its gradient written
        add("elementwise", count * 2 * passes * (block.saved - block.spread) * own / hbm)
        if layout.recompute == "selective":
            add("elementwise", count * 2 * block.cheap * own / hbm)
        add("spread", count * 2 * passes * block.spread * own / hbm * busiest)
        add("kernels", count * PER_BLOCK)
        if block.experts:
            add("expert_weights", count * 6 * routed_numel / layout.ep / hbm)
            add("routing", count * 24 * (block.experts + 16 * block.top_k) * own / hbm)
            add("permute", count * 16 * own * block.top_k * block.routed / hbm * busiest)
            inside, across = _dispatch_seconds(job, block)
            add("dispatch", count * inside * busiest)
            add("across", count * across * busiest)
        if layout.tp > 1:
            gathered = 4 * t * model.hidden * 2 * (layout.tp - 1) / layout.tp
            add("tensor", count * gathered / bandwidth(gpu, layout.tp))
        if layout.cp > 1:
            sent = 3 * t * block.kv / layout.tp * 2 * (layout.cp - 1)
            add("context", count * sent / bandwidth(gpu, layout.cp, layout.tp))
    heads = 1 + model.mtp_depth
    add("head", 3 * 2.0 * heads * model.vocab * model.hidden * own / peak16 + heads * 12 * model.vocab * own / hbm)
    work = {kind: seconds / layout.pp * job.uneven for kind, seconds in work.items()}
    if layout.pp > 1:
        add("pipeline", 2 * layout.vp * own * model.hidden * 2 / (gpu.network * 1e9))
    if layout.fsdp:
        gather = _gather_seconds(job)
        if gather:  # prefetched behind the work, which takes about twice its time at peak: what sticks out counts
            behind = 2 * sum(work.values())
            add("gather", (gather**4 + behind**4) ** 0.25 - behind)
    return work


def step_work(job: Job) -> dict[str, float]:
    """Seconds at peak of what a step does once: gradient reduction, parameter gathering, the optimiser."""
    gpu, layout = job.gpu, job.layout
    reduce = 0.0
    states = 0.0
    for shard, degree, span in _shards(job):
        if degree > 1 and not layout.fsdp:
            reduce += 6 * shard * (degree - 1) / degree / bandwidth(gpu, degree, span)
        states += shard / degree
    return {"reduce": reduce, "optimizer": 30 * states / (gpu.hbm * 1e9)}


@lru_cache(maxsize=64)
def block_counts(model: Architecture) -> tuple[tuple[Block, int], ...]:
    """Every kind of block that a step runs through, and how often; MTP's blocks once a predicted token."""
    return tuple(Counter([*model.blocks(), *model.mtp * model.mtp_depth]).items())


@lru_cache(maxsize=4096)
def parameters_of_a_rank(model: Architecture, tp: int, pp: int, ep: int) -> tuple[float, float]:
    """(dense, expert) parameters on an average pipeline rank before data parallel shards anything."""
    dense = expert = 0.0
    blocks = Counter([*model.blocks(), *model.mtp])
    ends = [(weight, 1) for weight in model.ends]
    for weight, count in [*((w, n) for block, n in blocks.items() for w in block.weights), *ends]:
        if weight.group == "expert":
            expert += count * weight.numel / ep
        else:
            dense += count * weight.numel / (tp if weight.split != "none" else 1)
    return dense / pp, expert / pp


@lru_cache(maxsize=512)
def _split(block: Block) -> tuple[float, float, int]:
    """Forward FLOPs per token of the dense and of the routed products, and the routed experts' parameters."""
    routed = [weight for weight in block.weights if weight.group == "expert"]
    dense = [weight for weight in block.weights if weight.group != "expert"]
    return matmul_flops(dense), matmul_flops(routed), sum(weight.numel for weight in routed)


def _shards(job: Job) -> list[tuple[float, int, int]]:
    """(parameters, ranks that share them out, stride of those ranks) of the dense and the expert part."""
    layout = job.layout
    dense, expert = parameters_of_a_rank(job.model, layout.tp, layout.pp, layout.ep)
    return [(dense, job.dp * layout.cp, layout.tp), (expert, layout.efsdp(job.ranks), layout.ep)]


def bandwidth(gpu: GPU, degree: int, stride: int = 1) -> float:
    """Bytes/s of a rank in a collective over `degree` ranks, every `stride`-th of the world.

    Across domains the members of one domain share the work of their adapters and spread it over NVLink.
    """
    if degree * stride <= gpu.domain:
        return gpu.nvlink * 1e9
    return min(gpu.nvlink, gpu.network * max(1, gpu.domain // stride)) * 1e9


def _dispatch_seconds(job: Job, block: Block) -> tuple[float, float]:
    """Dispatch and combine, both passes: seconds on NVLink and on the network.

    Across domains a token is sent once to each domain that has one of its experts, and copied there.
    """
    layout, gpu = job.layout, job.gpu
    ep, k = layout.ep, block.top_k
    if ep == 1:
        return 0.0, 0.0
    token_bytes = 4 * job.tokens / layout.tp * block.routed * 2
    inside = token_bytes * k * (ep - 1) / ep / (gpu.nvlink * 1e9)
    if ep <= gpu.domain:
        return inside, 0.0
    domains = ep / gpu.domain
    copies = (domains - 1) * (1 - (1 - 1 / domains) ** k)
    return inside, token_bytes * copies / (gpu.network * 1e9)


def _gather_seconds(job: Job) -> float:
    layout = job.layout
    seconds = 0.0
    for shard, degree, span in _shards(job):
        shared = min(degree, layout.fsdp * layout.cp if span == layout.tp else degree)
        if shared > 1:
            seconds += 8 * shard * (shared - 1) / shared / bandwidth(job.gpu, shared, span)
    return seconds
