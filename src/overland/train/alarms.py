"""Alarms: what happened, at which step, with which value, and what to do about it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from overland.errors import OverlandError

log = logging.getLogger("overland.train")


@dataclass(frozen=True)
class Alarm:
    """One thing a person should know. `kind` is loss_spike, non_finite, dead_experts or overloaded_experts."""

    step: int
    kind: str
    value: float
    message: str

    def row(self) -> dict[str, Any]:
        """As a line for metrics.jsonl."""
        return {"step": self.step, "alarm/kind": self.kind, "alarm/value": self.value, "alarm/message": self.message}


class LossSpike:
    """A robust z-score against a running median: a few bad steps neither hide themselves nor raise the bar.

    A spread under `floor` (nats a token) counts as `floor`: where a tuned model's loss is almost nothing, ten times
    almost nothing is no reason to wake somebody.
    """

    def __init__(self, window: int = 64, threshold: float = 8.0, least: int = 16, floor: float = 0.005) -> None:
        self.window, self.threshold, self.least, self.floor = window, threshold, least, floor
        self.history: list[float] = []

    def check(self, step: int, loss: float) -> Alarm | None:
        """Compare with the window before this step, then add the step to it."""
        found = None
        if len(self.history) >= self.least:
            middle = median(self.history)
            spread = 1.4826 * median(abs(x - middle) for x in self.history)  # a normal's sigma
            z = (loss - middle) / max(spread, 0.01 * abs(middle), self.floor)
            if z > self.threshold:
                found = Alarm(
                    step,
                    "loss_spike",
                    loss,
                    f"step {step}: loss {loss:.4g} is {z:.1f} deviations above the running median {middle:.4g}. "
                    "One such step is often an odd batch; if they repeat, lower lr, lengthen warmup or lower clip.",
                )
        self.history = [*self.history, loss][-self.window :]
        return found


class NonFinite:
    """Steps whose loss or gradient is not finite are skipped and counted; too many in a row stop the run."""

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        self.in_a_row = 0
        self.skipped = 0

    def check(self, step: int, loss: float, grad_norm: float) -> Alarm | None:
        """An Alarm means: do not take this step. Raises OverlandError after `patience` in a row."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self.in_a_row = 0
            return None
        self.in_a_row += 1
        self.skipped += 1
        what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient norm", grad_norm)
        if self.in_a_row >= self.patience:
            raise OverlandError(
                f"step {step}: {what} is {value} for the {self.in_a_row}th step in a row; stopped. The weights are "
                "those of the last sound step. Lower lr or clip, lengthen warmup, or look for broken rows in the data."
            )
        return Alarm(
            step,
            "non_finite",
            value,
            f"step {step}: {what} is {value}; the step was skipped, the weights are unchanged "
            f"({self.in_a_row} in a row, stops at {self.patience}). Lower lr or clip if it comes again.",
        )


class ExpertLoad:
    """Experts that got no token, or far too many, over a whole window of steps. Said once each time it starts."""

    def __init__(self, window: int = 20, overload: float = 4.0) -> None:
        self.window, self.overload = window, overload
        self.sums: list[Tensor] = []
        self.steps = 0
        self.raised: set[str] = set()

    def check(self, step: int, counts: Sequence[Tensor]) -> list[Alarm]:
        """`counts`: tokens per expert [E] of each layer in this step."""
        before = self.sums or [torch.zeros_like(c) for c in counts]
        self.sums = [s + c for s, c in zip(before, counts, strict=True)]
        self.steps += 1
        if self.steps < self.window:
            return []
        found: dict[str, Alarm] = {}
        for layer, total in enumerate(self.sums):
            load = total.double() / total.double().mean().clamp(min=1e-9)
            dead = (total == 0).nonzero().flatten().tolist()
            busy = (load > self.overload).nonzero().flatten().tolist()
            if dead:
                found[f"dead {layer}"] = self._dead(step, layer, dead)
            if busy:
                found[f"busy {layer}"] = self._busy(step, layer, busy, load.max().item())
        new = [alarm for name, alarm in found.items() if name not in self.raised]
        self.raised, self.sums, self.steps = set(found), [], 0
        return new

    def _dead(self, step: int, layer: int, experts: list[int]) -> Alarm:
        return Alarm(
            step,
            "dead_experts",
            float(len(experts)),
            f"step {step}: expert layer {layer} sent no token to experts {_few(experts)} in {self.window} steps. "
            "Lower balance_ema so that the bias follows faster, or check that balance is on.",
        )

    def _busy(self, step: int, layer: int, experts: list[int], worst: float) -> Alarm:
        return Alarm(
            step,
            "overloaded_experts",
            worst,
            f"step {step}: expert layer {layer} sends {worst:.1f} times the mean load to experts {_few(experts)} over "
            f"{self.window} steps. Lower balance_ema, use larger batches, or check that balance is on.",
        )


class Alarms:
    """All alarms of a training loop behind two calls."""

    def __init__(self, patience: int = 5) -> None:
        self.spike, self.finite, self.load = LossSpike(), NonFinite(patience), ExpertLoad()

    @property
    def skipped(self) -> int:
        return self.finite.skipped

    def check(self, step: int, loss: float, grad_norm: float, counts: Sequence[Tensor]) -> tuple[bool, list[Alarm]]:
        """Whether the step is sound (take it), and the alarms it raised; each is also logged as a warning."""
        bad = self.finite.check(step, loss, grad_norm)
        if bad is not None:
            log.warning(bad.message)
            return False, [bad]
        spike = self.spike.check(step, loss)
        found = [*([spike] if spike else []), *(self.load.check(step, counts) if counts else [])]
        for alarm in found:
            log.warning(alarm.message)
        return True, found

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint, so that a resumed run raises the same alarms."""
        return {
            "history": self.spike.history,
            "in_a_row": self.finite.in_a_row,
            "skipped": self.finite.skipped,
            "sums": [s.tolist() for s in self.load.sums],
            "steps": self.load.steps,
            "raised": sorted(self.load.raised),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spike.history = list(state["history"])
        self.finite.in_a_row, self.finite.skipped = int(state["in_a_row"]), int(state["skipped"])
        self.load.sums = [torch.tensor(s) for s in state["sums"]]
        self.load.steps, self.load.raised = int(state["steps"]), set(state["raised"])


def _few(experts: list[int]) -> str:
    shown = ", ".join(map(str, experts[:8]))
    return shown + (f" and {len(experts) - 8} more" if len(experts) > 8 else "")
