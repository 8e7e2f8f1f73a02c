"""One question to the planner: which model, on what, laid out how, with which batch; and whether that can be at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from overland.errors import UsageError
from overland.parallel.layout import Layout, refuse
from overland.parallel.planner.architecture import Architecture
from overland.parallel.planner.gpus import GPU


@dataclass(frozen=True)
class Job:
    """What is trained on what: `gbs` and `mbs` in sequences of `seq` tokens.

    `balanced`: routing gives every expert the same number of tokens (forced, or by a balanced plan).
    `software`: a stack of the measured runs, newer NeMo releases being faster; "typical" is the mean of all.
    """

    model: Architecture
    gpu: GPU
    ranks: int
    layout: Layout
    seq: int
    gbs: int
    mbs: int = 1
    precision: str = "bf16"
    balanced: bool = True
    software: str = "26.04"

    @property
    def dp(self) -> int:
        return self.layout.dp(self.ranks)

    @property
    def micro_batches(self) -> int:
        return max(1, self.gbs // (self.mbs * self.dp))

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on a rank, before tensor parallel splits its sequence."""
        return self.mbs * self.seq / self.layout.cp

    @property
    def bubble(self) -> float:
        """Idle share added to the work of a pipeline rank: (pp - 1) / (vp * micro-batches)."""
        return (self.layout.pp - 1) / (self.layout.vp * self.micro_batches)

    @property
    def uneven(self) -> float:
        """How much more the fullest stage does than the average one, 1 where the layers divide.

        The embedding and the output head may count as a layer each, as Megatron-LM lets them.
        """
        chunks, layers = self.layout.pp * self.layout.vp, len(self.model.layers)
        if chunks == 1:
            return 1.0
        return min(ceil(count / chunks) * chunks / count for count in (layers, layers + 2))

    def with_layout(self, **changes: int | str) -> Job:
        return replace(self, layout=self.layout.with_(**changes))

    def check(self) -> None:
        """Raises UsageError naming the first degree that cannot be, with the nearest that can."""
        layout, model = self.layout, self.model
        self.gpu.peak(self.precision)
        for field, value in (("--gpus", self.ranks), ("--seq", self.seq), ("--gbs", self.gbs), ("--mbs", self.mbs)):
            if value < 1:
                raise UsageError(f"{field} = {value} is not a whole number from 1")
        world = self.ranks
        for name in ("pp", "tp", "cp"):
            if world % getattr(layout, name):
                done = "--gpus" if world == self.ranks else "--gpus / the degrees before it"
                raise refuse(name, getattr(layout, name), done, world)
            world //= getattr(layout, name)
        stage = self.ranks // layout.pp
        if stage % layout.ep:
            raise refuse("ep", layout.ep, "the ranks of a pipeline stage", stage)
        if layout.ep > 1 and not model.experts:
            raise UsageError(f"ep = {layout.ep}: {model.name} has no experts; nearest valid: 1")
        if model.experts and model.experts % layout.ep:
            raise refuse("ep", layout.ep, "the experts", model.experts)
        for heads in model.heads:
            if heads % layout.tp:
                raise refuse("tp", layout.tp, "the heads", heads)
        if layout.fsdp and self.dp % layout.fsdp:
            raise refuse("fsdp", layout.fsdp, "the data-parallel ranks", self.dp)
        chunks, layers = layout.pp * layout.vp, len(model.layers)
        if layout.vp > 1 and layout.pp == 1:
            raise UsageError(f"vp = {layout.vp} needs a pipeline, and pp = 1; nearest valid: 1")
        if chunks > layers + 2:  # the embedding and the head may be a stage of their own
            name, whole = ("pp", layers) if layout.pp > layers else ("vp", max(1, layers // layout.pp))
            raise UsageError(
                f"{name} = {getattr(layout, name)}: pp * vp = {chunks} stages for {layers} layers; "
                f"nearest valid: {name} up to {whole}"
            )
        if self.seq % (layout.cp * layout.tp):
            raise refuse("cp * tp", layout.cp * layout.tp, "--seq", self.seq)
        if self.gbs % self.dp:
            near = sorted({max(1, self.gbs // self.dp) * self.dp, ceil(self.gbs / self.dp) * self.dp})
            raise UsageError(
                f"--gbs = {self.gbs} is no multiple of the {self.dp} data-parallel ranks; "
                f"nearest valid: {', '.join(map(str, near))}"
            )
        if (self.gbs // self.dp) % self.mbs:
            raise refuse("--mbs", self.mbs, "the sequences of a rank", self.gbs // self.dp)
