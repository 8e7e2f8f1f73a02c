"""Everything a resumed run needs to continue bit for bit, in one checkpoint folder a step."""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from overland.errors import BrokenFileError
from overland.rl.budgets import Budgets
from overland.rl.curriculum import Curriculum
from overland.rl.watchdogs import Watchdogs
from overland.runs import RunFolder, atomic_write

FILE = "state.pt"


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
        self.run, self.folder = run, run.checkpoints / stage
        self.model, self.optimizer = model, optimizer
        self.parts: dict[str, Any] = {"curriculum": curriculum, "budgets": budgets, "watchdogs": watchdogs}
        self.step = 0
        """Steps done; also the version of the policy that samples next."""
        self.empty = 0
        """Batches in a row without variance."""

    def save(self) -> Path:
        """Write checkpoints/STAGE/step-N atomically and remove the ones before it."""
        state = {
            "step": self.step,
            "empty": self.empty,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "python_rng": random.getstate(),
            "metrics_bytes": self.run.metrics_position(),
            **{name: part.state_dict() for name, part in self.parts.items()},
        }
        target = self.folder / f"step-{self.step}"
        buffer = io.BytesIO()
        torch.save(state, buffer)
        target.mkdir(parents=True, exist_ok=True)
        atomic_write(target / FILE, buffer.getvalue())
        for old in self.folder.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
        return target

    def load(self) -> bool:
        """Continue from the newest checkpoint and cut the metrics written after it; False when there is none."""
        files = sorted(self.folder.glob(f"step-*/{FILE}"), key=lambda f: int(f.parent.name.removeprefix("step-")))
        if not files:
            return False
        try:
            state = torch.load(files[-1], weights_only=True)
        except Exception as error:  # torch raises several kinds for a damaged archive
            raise BrokenFileError(f"{files[-1]}: cannot be read ({error}). Delete it, or run without --resume.") from error
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])
        version, internal, gauss = state["python_rng"]
        random.setstate((version, tuple(internal), gauss))
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.step, self.empty = state["step"], state["empty"]
        self.run.rewind_metrics(state["metrics_bytes"])
        return True
