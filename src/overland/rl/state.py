"""Everything a resumed run needs to continue bit for bit, in checkpoints/STAGE/step-N."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from overland.errors import BrokenFileError
from overland.rl.budgets import Budgets
from overland.rl.curriculum import Curriculum
from overland.rl.watchdogs import Watchdogs
from overland.runs import RunFolder
from overland.train.checkpoint import Checkpoints
from overland.train.ranks import Ranks


class TrainerState:
    """Weights, optimiser, random states, curriculum, budgets, alarms and the place in the metrics file."""

    def __init__(
        self,
        run: RunFolder,
        stage: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        curriculum: Curriculum,
        budgets: Budgets,
        watchdogs: Watchdogs,
    ) -> None:
        self.run, self.stage = run, stage
        self.checkpoints = Checkpoints(run.checkpoints / stage, writes=Ranks.current().writes)
        self.model, self.optimizer = model, optimizer
        self.parts: dict[str, Any] = {"curriculum": curriculum, "budgets": budgets, "watchdogs": watchdogs}
        self.step = 0
        """Steps done; also the version of the policy that samples next."""
        self.empty = 0
        """Batches in a row without variance."""
        self.stopped = ""
        """Why the run ended before its last step; empty while it goes on."""
        self.cpu_seconds = 0.0
        """Processor time used so far, earlier processes of this run included."""
        self.tokens = 0
        """Tokens sampled in all training rollouts."""
        self.figures: dict[str, float] = {}
        """The figures of the last step."""

    def start(self, resume: bool) -> bool:
        """True when the run goes on from a checkpoint; otherwise the stage's older checkpoints and metrics are cut."""
        begin = self.run.start_stage(self.stage)
        if resume and self._load():
            return True
        self.checkpoints.clear()
        self.run.rewind_metrics(begin)
        return False

    def save(self) -> Path:
        """Write the state after `step` steps, atomically."""
        extra = {
            "empty": self.empty,
            "stopped": self.stopped,
            "cpu_seconds": self.cpu_seconds,
            "tokens": self.tokens,
            "figures": self.figures,
            "metrics_bytes": self.run.metrics_position(),
            **{name: part.state_dict() for name, part in self.parts.items()},
        }
        return self.checkpoints.save(self.step, self.model, self.optimizer, extra)

    def _load(self) -> bool:
        """Take the newest checkpoint and cut the metrics written after it; False when there is none."""
        loaded = self.checkpoints.load(self.model, self.optimizer)
        if loaded is None:
            return False
        self.step, extra = loaded
        try:
            for name, part in self.parts.items():
                part.load_state_dict(extra[name])
            self.empty, self.stopped = extra["empty"], extra["stopped"]
            self.cpu_seconds, self.tokens, self.figures = extra["cpu_seconds"], extra["tokens"], extra["figures"]
            self.run.rewind_metrics(extra["metrics_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenFileError(
                f"{self.checkpoints.folder}: step {self.step} is not a checkpoint of RL ({error!r}). "
                "Run again without --resume."
            ) from error
        return True
