"""What follows the backward pass, the same in every loop: clip, judge, step, balance, record, save, resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from overland.errors import OverlandError
from overland.model import Capacity, limit_experts
from overland.runs import RunFolder
from overland.train.alarms import Alarms
from overland.train.balance import Reduce, RoutingLike
from overland.train.balancing import make_balance
from overland.train.batch import Loader
from overland.train.checkpoint import Checkpoints
from overland.train.meters import ExpertCounts, Throughput, expert_metrics, routing_metrics, routing_totals
from overland.train.optim import adamw, clip_gradients, set_learning_rate
from overland.train.ranks import Ranks
from overland.train.schedules import learning_rate
from overland.train.section import LoopSection


class Steps:
    """The state of one training stage beside the model: optimiser, balance, meters, alarms, checkpoints."""

    def __init__(
        self,
        model: nn.Module,
        section: LoopSection,
        run: RunFolder,
        stage: str,
        prefix: str,
        loader: Loader | None = None,
    ) -> None:
        self.model, self.section, self.run, self.loader = model, section, run, loader
        self.ranks = Ranks.current()
        self.stage, self.prefix = stage, prefix
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise OverlandError(f"{stage}: the model has no trainable parameter")
        self.optimizer = adamw(
            model, section.lr, weight_decay=section.weight_decay, betas=section.betas, eps=section.eps
        )
        reduce: Reduce | None = self.ranks.sum_ if self.ranks.world > 1 else None
        self.balance = make_balance(section, reduce)
        factor = section.capacity_factor
        limit_experts(model, Capacity(factor, section.capacity_drop) if factor else None)
        self.checkpoints = Checkpoints(run.checkpoints / stage, section.keep_checkpoints, writes=self.ranks.writes)
        self.alarms, self.experts, self.speed = Alarms(section.patience), ExpertCounts(), Throughput()
        self.routing = torch.zeros(3, dtype=torch.float64)  # see routing_totals
        self.tokens, self.last_loss = 0, math.nan
        self.notes: dict[str, Any] = {}  # figures that a resumed run must not compute again

    def start(self, resume: bool) -> int:
        """The step to go on with: from the newest checkpoint, or 0 with older ones of this stage removed."""
        begin = self.run.start_stage(self.stage)
        found = self.checkpoints.load(self.model, self.optimizer) if resume else None
        if found is None:
            self.checkpoints.clear()
            self.run.rewind_metrics(begin)
            return 0
        step, extra = found
        if extra.get("steps") != self.section.steps:
            raise OverlandError(
                f"{self.stage}: steps = {self.section.steps}, the checkpoint was made for {extra.get('steps')}; the "
                "schedule would change half way. Use the old value, or run again without --resume."
            )
        self.tokens, self.last_loss, self.notes = extra["tokens"], extra["loss"], extra["notes"]
        self.alarms.load_state_dict(extra["alarms"])
        if self.loader is not None:
            self.loader.load_state_dict(extra["cursor"])
        self.run.rewind_metrics(extra["metrics"])
        return step

    def observe(self, router: Sequence[RoutingLike]) -> None:
        """Take in the routing of one forward."""
        self.experts.add([record.counts for record in router])
        self.routing += routing_totals(router)
        self.balance.observe(router)

    def balanced(self, loss: Tensor, *forwards: Sequence[RoutingLike], share: float) -> Tensor:
        """The loss of a micro-batch with what balancing adds to it; `share` is its part of the step's tokens.

        Where several forwards made the micro-batch, each counts by its tokens.
        """
        tokens = [len(router[0].scores) if router else 0 for router in forwards]
        for router, own in zip(forwards, tokens, strict=True):
            term = self.balance.loss(router, share * own / max(1, sum(tokens)))
            loss = loss if term is None else loss + term
        return loss

    def finish(self, step: int, loss: float, tokens: int, **figures: float) -> dict[str, Any]:
        """Take the step if it is sound, record it, and save when it is time. Returns the recorded row.

        `loss` and `tokens` are this rank's share; gradients, losses and counts meet here, so every rank decides alike.
        """
        section = self.section
        self.ranks.sum_gradients(self.parameters)
        loss, tokens = self.ranks.sum(loss, tokens)[0], int(self.ranks.sum(tokens)[0])
        norm = clip_gradients(self.parameters, section.clip)
        counts = [self.ranks.sum_(layer) for layer in self.experts.take()]
        routing, self.routing = self.ranks.sum_(self.routing), torch.zeros_like(self.routing)
        sound, raised = self.alarms.check(step, loss, norm, counts)
        lr = learning_rate(
            step, section.steps, section.lr, warmup=section.warmup, kind=section.schedule, floor=section.floor
        )
        if sound:
            set_learning_rate(self.optimizer, lr)
            self.optimizer.step()
            self.balance.update()
            self.last_loss = loss
        self.balance.discard()
        self.optimizer.zero_grad(set_to_none=True)
        self.tokens += tokens
        row = {
            "stage": self.stage,
            "step": step,
            f"{self.prefix}/loss": loss,
            f"{self.prefix}/grad_norm": norm,
            f"{self.prefix}/lr": lr,
            f"{self.prefix}/tokens": self.tokens,
            f"{self.prefix}/tokens_per_second": round(self.speed.step(tokens), 1),
            f"{self.prefix}/skipped": self.alarms.skipped,
            **figures,
            **expert_metrics(counts, shares=step % section.shares_every == 0 or step == section.steps - 1),
            **routing_metrics(routing),
        }
        self.run.metrics(row)
        for alarm in raised:
            self.run.metrics({"stage": self.stage, **alarm.row()})
        if (step + 1) % section.checkpoint_every == 0 or step + 1 == section.steps:
            self.save(step + 1)
        return row

    def end(self) -> None:
        """The stage is over: the model evaluates, and nothing limits its experts any more."""
        limit_experts(self.model, None)
        self.model.eval()

    def save(self, step: int) -> None:
        """A checkpoint after `step` steps. Saving the same step twice is harmless and skipped."""
        if step in self.checkpoints.steps():
            return
        extra = {
            "steps": self.section.steps,
            "tokens": self.tokens,
            "loss": self.last_loss,
            "notes": self.notes,
            "alarms": self.alarms.state_dict(),
            "cursor": self.loader.state_dict() if self.loader is not None else {},
            "metrics": self.run.metrics_position(),
        }
        self.checkpoints.save(step, self.model, self.optimizer, extra)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
