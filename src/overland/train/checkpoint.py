"""Resumable state on disk: weights, optimiser, random generators, data cursor, step.

    checkpoints/STAGE/step-00000120/   torch.distributed.checkpoint files and state.json

The tensors go through torch.distributed.checkpoint, so that a later run may read them under another layout; no process
group is needed here. A checkpoint is written beside its name and renamed when whole; state.json holds the SHA-256 of
every other file and is checked before anything is loaded.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overland.errors import BrokenFileError
from overland.runs import explain_disk_errors, read_json, replace_folder, sha256_file, write_json


class Checkpoints:
    """The checkpoints of one stage in one folder; the newest `keep` stay. Only rank 0 `writes`, every rank loads."""

    def __init__(self, folder: str | Path, keep: int = 2, *, writes: bool = True) -> None:
        self.folder, self.keep, self.writes = Path(folder), max(1, keep), writes

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, extra: dict[str, Any] | None = None
    ) -> Path:
        """Write the state after `step` steps. `extra` is plain JSON data: the cursor, metrics position, meters."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException

        final = self.folder / f"step-{step:08d}"
        if not self.writes:
            return final
        temporary = self.folder / f".step-{step:08d}.tmp"
        with explain_disk_errors(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        try:
            with explain_disk_errors(final), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "no process group": that is the plan here
                try:
                    dcp.save(_tensors(model, optimizer), checkpoint_id=str(temporary), no_dist=True)
                except CheckpointException as error:  # wraps what went wrong on each rank; is no Exception
                    raise _cause(error.failures) from None
            hashes = {f.name: sha256_file(f) for f in sorted(temporary.iterdir())}
            state = {"step": step, "extra": extra or {}, "random": _plain_random_state(), "sha256": hashes}
            write_json(temporary / "state.json", state)
            replace_folder(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._prune()
        return final

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, dict[str, Any]] | None:
        """Bring everything back to the newest checkpoint. Returns (step, extra), or None where there is none.

        Raises BrokenFileError naming the file that is damaged; nothing has been changed then.
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict import set_state_dict

        found = self.steps()
        if not found:
            return None
        folder = self.folder / f"step-{found[-1]:08d}"
        state = self._checked(folder, found[:-1])
        tensors = _tensors(model, optimizer)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(tensors, checkpoint_id=str(folder), no_dist=True)
        except (Exception, CheckpointException) as error:  # not an Exception; all mean: not the model that was saved
            raise BrokenFileError(
                f"{folder}: does not fit this model ({_first_line(error)}). Was the recipe changed? "
                "Run again without --resume."
            ) from error
        set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
        _restore_random(tensors["random"], state["random"])
        return int(state["step"]), dict(state["extra"])

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints here, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name[5:]) for p in self.folder.glob("step-*") if p.name[5:].isdigit())

    def clear(self) -> None:
        """Remove all: a stage that starts from the beginning must not be resumed from an older run's state."""
        if not self.writes:
            return
        shutil.rmtree(self.folder, ignore_errors=True)

    def _checked(self, folder: Path, older: list[int]) -> dict[str, Any]:
        back = f"Delete {folder} to {f'go back to step {older[-1]}' if older else 'start the stage again'}"
        state = read_json(folder / "state.json")
        try:
            files = dict(state["sha256"])
            state["step"], state["extra"], state["random"]
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenFileError(f"{folder / 'state.json'}: is not a checkpoint's state. {back}.") from error
        for name, expected in files.items():
            path = folder / name
            if not path.is_file() or sha256_file(path) != expected:
                what = "is damaged" if path.is_file() else "is missing"
                raise BrokenFileError(f"{path}: {what}. {back}.")
        return state

    def _prune(self) -> None:
        for step in self.steps()[: -self.keep]:
            gone = self.folder / f".step-{step:08d}.tmp"  # renamed first: a half-deleted one must not look whole
            os.replace(self.folder / f"step-{step:08d}", gone)
            shutil.rmtree(gone, ignore_errors=True)
        for litter in (*self.folder.glob(".step-*.tmp"), *self.folder.glob(".step-*.old")):
            shutil.rmtree(litter, ignore_errors=True)


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything that is a tensor, by name: parameters, buffers, optimiser state, generator states."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    optimizer.zero_grad(set_to_none=True)  # torch sets up a fresh optimiser's state only where no gradient waits
    weights, moments = get_state_dict(model, optimizer)
    states: dict[str, Tensor] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{n}": s for n, s in enumerate(torch.cuda.get_rng_state_all())}
    return {"model": weights, "optimizer": moments, "random": states}


def _cause(failures: Mapping[int, tuple[BaseException, Any]]) -> BaseException:
    """What the first rank failed of: the disk's own words where torch's complaint about its file followed them."""
    first = next(iter(failures.values()))[0]
    error: BaseException | None = first
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error or first


def _plain_random_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
    }


def _restore_random(tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    torch.set_rng_state(tensors["cpu"])
    cuda = [tensors[name] for name in sorted(tensors) if name.startswith("cuda")]
    if cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(cuda)
    version, internal, gauss = plain["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = plain["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return next((line.strip() for line in reversed(text) if line.strip()), type(error).__name__)[:200]
