"""Alarms: a run that has collapsed is stopped with its reason, never paid for to the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from overland.errors import OverlandError
from overland.rl.section import WatchdogSection


class Collapse(OverlandError):
    """A watchdog tripped. The message says which figure, what it means and what to try."""


class Watchdogs:
    """Looks at the figures of every step. Fast alarms trip at once, slow ones after `patience` steps in a row."""

    def __init__(self, section: WatchdogSection) -> None:
        self.section = section
        self.streak: dict[str, int] = {}

    def check(self, step: int, figures: Mapping[str, float]) -> None:
        """`figures` are the step's metrics by their flat names. Raises Collapse."""
        limits = self.section
        mismatch = figures.get("rl/mismatch_kl", 0.0)
        if not mismatch <= limits.mismatch_kl:
            raise Collapse(
                f"step {step}: trainer and sampler disagree by {mismatch:.2g} nats a token "
                f"(rl.watchdogs.mismatch_kl = {limits.mismatch_kl}): the sampler holds other weights or other numerics "
                "than the trainer; check that weights reached it"
            )
        norm = figures.get("rl/grad_norm", 0.0)
        if not math.isfinite(norm) or norm > limits.grad_norm:
            raise Collapse(
                f"step {step}: gradient norm {norm:.3g} (rl.watchdogs.grad_norm = {limits.grad_norm}): "
                "lower rl.lr, or resume from the last checkpoint with a lower rl.algorithm.clip_high"
            )
        success = figures.get("rl/success", 0.0)
        self._slow(
            "success",
            success == 0.0,
            step,
            "no episode has succeeded",
            "the policy has collapsed or the tasks are too hard: start from more SFT or from easier levels",
        )
        entropy = figures.get("rl/entropy", math.inf)
        self._slow(
            "entropy",
            entropy < limits.entropy_floor and success < limits.solved,
            step,
            f"entropy is below rl.watchdogs.entropy_floor = {limits.entropy_floor} (now {entropy:.2g})",
            "the policy no longer explores: raise rl.algorithm.clip_high, lower rl.lr, or go back to a checkpoint",
        )
        failures = figures.get("rl/parse_failures", 0.0)
        self._slow(
            "parse",
            failures > limits.parse_failures,
            step,
            f"{failures:.0%} of the episodes have a malformed turn",
            "the policy lost the template: resume from an earlier checkpoint with a lower rl.lr or a rl.parse_penalty",
        )

    def _slow(self, name: str, bad: bool, step: int, what: str, advice: str) -> None:
        self.streak[name] = self.streak.get(name, 0) + 1 if bad else 0
        if self.streak[name] >= self.section.patience:
            raise Collapse(f"step {step}: {what} for {self.section.patience} steps in a row: {advice}")

    def state_dict(self) -> dict[str, Any]:
        return dict(self.streak)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.streak = dict(state)
