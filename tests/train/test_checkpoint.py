"""Checkpoints: whole, checked, bounded in number, and surviving kills."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from overland.errors import BrokenFileError, OverlandError
from overland.train import Checkpoints, adamw

CHILD_ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
}


def trained(seed: int = 0, steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
    model.register_buffer("counter", torch.tensor(float(seed)))
    optimizer = adamw(model, 1e-2)
    for _ in range(steps):
        model(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    Checkpoints(tmp_path).save(7, model, optimizer, {"cursor": {"given": 3}})
    drawn = torch.rand(3), random.random(), np.random.rand()
    other, other_optimizer = trained(seed=9, steps=0)
    assert Checkpoints(tmp_path).load(other, other_optimizer) == (7, {"cursor": {"given": 3}})
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[p][key], other_optimizer.state[q][key])
    again = torch.rand(3), random.random(), np.random.rand()
    assert torch.equal(drawn[0], again[0])
    assert drawn[1:] == again[1:]


def test_only_the_newest_are_kept_and_an_empty_folder_has_none(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoints = Checkpoints(tmp_path / "new", keep=2)
    assert checkpoints.load(model, optimizer) is None
    for step in (1, 2, 3):
        checkpoints.save(step, model, optimizer)
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata", "state.json"])
def test_a_damaged_file_is_named_before_anything_changes(tmp_path: Path, file: str) -> None:
    model, optimizer = trained()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model, optimizer)
    checkpoints.save(2, model, optimizer)
    path = tmp_path / "step-00000002" / file
    path.write_bytes(path.read_bytes()[:-20])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BrokenFileError, match=rf"step-00000002/{file}"):
        checkpoints.load(model, optimizer)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    shutil.rmtree(tmp_path / "step-00000002")
    assert checkpoints.load(model, optimizer) == (1, {})


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, *trained())
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
    with pytest.raises(BrokenFileError, match="does not fit this model"):
        Checkpoints(tmp_path).load(model, adamw(model, 1e-2))


@pytest.mark.parametrize("size", ["256k", "1m", "3m"])  # full at the first byte, in the weights, in the moments
def test_a_small_disk_is_named_and_leaves_no_half_checkpoint(small_disk: Callable[[str], Path], size: str) -> None:
    folder, model = small_disk(size), nn.Linear(512, 512)
    with pytest.raises(OverlandError, match="step-00000003: the disk is full"):
        Checkpoints(folder).save(3, model, adamw(model, 1e-2))
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, *trained())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OverlandError, match=r"step-00000002.*the disk is full"):
            checkpoints.save(2, *trained())
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


SAVER = """
import sys
from tests.train.test_checkpoint import trained
from overland.train import Checkpoints
model, optimizer = trained()
for step in range(1, 10**6):
    Checkpoints(sys.argv[1]).save(step, model, optimizer, {"step": step})
    print(step, flush=True)
"""


def test_a_kill_while_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=CHILD_ENVIRONMENT)
    assert process.stdout is not None
    for _ in range(4):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = Checkpoints(tmp_path).load(*trained(seed=5))
    assert found is not None
    assert found[0] == found[1]["step"] >= 4
