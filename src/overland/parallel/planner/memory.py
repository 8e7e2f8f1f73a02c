"""Bytes a rank needs: states exactly, from the weights' shapes; activations from what each block saves.

States in bytes a parameter: bf16 weights 2, fp32 gradients 4, fp32 master and two moments 12, of which data-parallel
ranks share out the 12 (zero=1) or the gradients too (zero=2). FSDP shares out everything and keeps fp32 weights (16 in
all), with two layers gathered in bf16 at a time. A cut that does not divide is rounded up, as DTensor's largest shard.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from overland.parallel.planner.architecture import Architecture, Block, Weight
from overland.parallel.planner.factors import coefficients
from overland.parallel.planner.job import Job

GIB = 2**30


@dataclass(frozen=True)
class MemoryFit:
    """What cannot be counted: bytes at the peak of a logit, in a fused loss and in FSDP's eager one; the share of the
    activations that selective recomputation leaves; how much of a layer recomputed in full is there at once; what the
    allocator of an FSDP run holds beyond what is counted [GiB]. `benchmarks/planner.py --fit` sets them."""

    fused_logit: float
    eager_logit: float
    selective: float
    recomputed_layer: float
    fsdp_reserve_gib: float

    @classmethod
    def fitted(cls) -> MemoryFit:
        return cls(**coefficients()["memory"])


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest pipeline rank, by what they are. The driver's own 1-2 GiB are not in it."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    reserve: float

    @property
    def gib(self) -> float:
        return sum(vars(self).values()) / GIB


def memory(job: Job, fit: MemoryFit) -> Memory:
    """Peak memory of the fullest pipeline rank: the first has most micro-batches in flight, the last the logits."""
    return max((_stage(job, fit, stage) for stage in {0, job.layout.pp - 1}), key=lambda found: found.gib)


def local_shape(weight: Weight, tp: int, ep: int) -> tuple[int, ...]:
    """Shape that tensor or expert parallel leaves of a weight on rank 0, before data parallel shards anything."""
    shape = weight.shape
    if weight.group == "expert":
        return (ceil(shape[0] / ep), *shape[1:])
    if weight.split == "column":
        return (ceil(shape[0] / tp), *shape[1:])
    if weight.split == "row":
        return (*shape[:-1], ceil(shape[-1] / tp))
    return shape


def in_flight(job: Job, stage: int) -> float:
    """Micro-batches whose activations a rank holds at once, in units of its whole stage (1F1B, interleaved or not)."""
    pp, vp = job.layout.pp, job.layout.vp
    held = float(pp - stage) if vp == 1 else ((vp - 1) * pp + 2 * (pp - stage - 1) + 1) / vp
    return min(held, float(job.micro_batches))


def _stage(job: Job, fit: MemoryFit, stage: int) -> Memory:
    layout, model = job.layout, job.model
    last = stage == layout.pp - 1
    dp, efsdp = job.dp * layout.cp, layout.efsdp(job.ranks)
    if layout.fsdp:
        dp = layout.fsdp * layout.cp
        efsdp = min(efsdp, max(1, dp * layout.tp // layout.ep))
    facts = _facts(model, layout.tp, layout.pp, layout.vp, layout.ep, stage, dp if layout.fsdp else 1, efsdp)
    depth = model.mtp_depth if last else 0
    own = job.tokens / layout.tp

    if layout.recompute == "full":  # a layer's input alone, and one layer at a time in whole
        elements = (
            float(facts.layers * model.hidden) * in_flight(job, stage) + fit.recomputed_layer * facts.widest_saved
        )
    else:
        kept = facts.saved if layout.recompute == "none" else fit.selective * (facts.saved - facts.cheap)
        elements = kept * in_flight(job, stage)
    activations = 2 * own * (elements + depth * sum(block.saved for block in model.mtp))
    if layout.tp > 1:  # the sequence gathered for a block's products and gradients
        activations += 4 * 2 * job.tokens * model.hidden
    logits = (1 + depth) * own * model.vocab if last else 0.0

    local = facts.dense + facts.expert
    if layout.fsdp:
        sharded = facts.shard
        states, gathered = (4 * sharded, 4 * sharded, 8 * sharded), 2 * 2 * facts.widest_weights
        return Memory(*states, gathered, activations, fit.eager_logit * logits, fit.fsdp_reserve_gib * GIB)
    sharded = facts.dense / dp + facts.expert / efsdp
    states = (2 * local, 4 * (sharded if layout.zero == 2 else local), 12 * sharded)
    return Memory(*states, 0.0, activations, fit.fused_logit * logits, 0.0)


@dataclass(frozen=True)
class _StageFacts:
    """Of one pipeline stage: elements of its weights on a rank before data parallel, and of a token's activations."""

    layers: int
    dense: float
    expert: float
    shard: float  # of FSDP
    widest_weights: float
    saved: float
    cheap: float
    widest_saved: float


@lru_cache(maxsize=8192)
def _facts(model: Architecture, tp: int, pp: int, vp: int, ep: int, stage: int, dp: int, efsdp: int) -> _StageFacts:
    layers = Counter(stage_layers(model, pp, vp, stage))
    first, last = stage == 0, stage == pp - 1
    ends = [w for w in model.ends if (first if w.group == "embedding" else last)]
    ends += [w for block in model.mtp if last for w in block.weights]
    dense, expert, shard = _local_parameters(ends, tp, ep, dp, efsdp)
    widest = saved = cheap = widest_saved = 0.0
    for layer, count in layers.items():
        weights = [w for block in layer for w in block.weights]
        layer_dense, layer_expert, layer_shard = _local_parameters(weights, tp, ep, dp, efsdp)
        dense, expert, shard = dense + count * layer_dense, expert + count * layer_expert, shard + count * layer_shard
        layer_saved = sum(block.saved for block in layer)
        saved, cheap = saved + count * layer_saved, cheap + count * sum(block.cheap for block in layer)
        widest, widest_saved = max(widest, layer_dense + layer_expert), max(widest_saved, layer_saved)
    return _StageFacts(sum(layers.values()), dense, expert, shard, widest, saved, cheap, widest_saved)


def _local_parameters(weights: list[Weight], tp: int, ep: int, dp: int, efsdp: int) -> tuple[float, float, float]:
    """(dense, expert) elements that a rank has of these weights before FSDP, and all of them after it."""
    dense = expert = shard = 0
    for weight in weights:
        shape = local_shape(weight, tp, ep)
        if weight.group == "expert":
            expert += prod(shape)
            shard += fsdp_numel(shape, efsdp, dim=1)
        else:
            dense += prod(shape)
            shard += fsdp_numel(shape, dp, dim=0)
    return dense, expert, shard


def fsdp_numel(shape: tuple[int, ...], degree: int, dim: int) -> int:
    """Elements of FSDP's largest shard: `dim` is cut into equal parts, rounded up."""
    return prod(shape) // shape[dim] * ceil(shape[dim] / degree)


@lru_cache(maxsize=1024)
def stage_layers(model: Architecture, pp: int, vp: int, stage: int) -> tuple[tuple[Block, ...], ...]:
    """Layers of a stage: cut evenly, what is left over going to the middle stages, whose ends carry no embedding."""
    layers = model.layers
    base, extra = divmod(len(layers), pp)
    counts = [base] * pp
    for at in sorted(range(pp), key=lambda s: (s in (0, pp - 1), s))[:extra]:
        counts[at] += 1
    if vp > 1:  # interleaved: a rank's layers come from all over the model
        return tuple(layers[(stage + at * pp) % len(layers)] for at in range(counts[stage]))
    start = sum(counts[:stage])
    return layers[start : start + counts[stage]]
