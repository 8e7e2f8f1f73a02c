"""The pretraining loop on the real nano model."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from overland.errors import OverlandError
from overland.runs import RunFolder
from overland.train import PretrainSection, TokenBatch, evaluate_bpb, pretrain, token_logprobs
from overland.train.batch import as_batch

from .helpers import CopyLoader, nano

CHILD_ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
}
QUICK = {"batch": 4, "length": 23, "warmup": 2, "checkpoint_every": 3}


def quick(**changes: object) -> PretrainSection:
    return PretrainSection(**{**QUICK, "steps": 7, **changes})  # type: ignore[arg-type]


def test_arrays_of_a_corpus_loader_become_a_batch_in_which_every_target_counts() -> None:
    inputs = np.arange(6, dtype=np.int64).reshape(2, 3)
    batch = as_batch((inputs, inputs + 1, np.zeros((2, 3), dtype=np.int32)))
    assert batch.documents is not None
    assert (batch.inputs.dtype, batch.documents.dtype) == (torch.int64, torch.int64)
    assert batch.weights.sum() == 6


class Stop(Exception):
    pass


class StoppingLoader(CopyLoader):
    """Fails like a kill would, after some batches."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def next(self) -> TokenBatch:
        if self.given == self.after:
            raise Stop
        return super().next()


def timeless(run: RunFolder) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if "per_second" not in k} for row in run.read_metrics()]


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path: Path) -> None:
    whole, broken = nano(), nano()
    held_out = [(list(range(40)), 80)]
    run, other = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    figures = pretrain(whole, CopyLoader(), quick(), run, held_out=held_out)
    with pytest.raises(Stop):
        pretrain(broken, StoppingLoader(5), quick(), other, held_out=held_out)
    assert len(other.read_metrics()) == 6  # two steps past the checkpoint at 3, to be cut
    resumed = nano(seed=1)
    again = pretrain(resumed, CopyLoader(), quick(), RunFolder(tmp_path / "broken"), held_out=held_out, resume=True)
    assert again == figures
    assert timeless(other) == timeless(run)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_resuming_a_finished_stage_gives_its_figures_again(tmp_path: Path) -> None:
    figures = pretrain(nano(), CopyLoader(), quick(steps=3), RunFolder(tmp_path))
    assert pretrain(nano(1), CopyLoader(), quick(steps=3), RunFolder(tmp_path), resume=True) == figures


def test_without_resume_an_older_runs_state_is_forgotten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    pretrain(nano(), CopyLoader(), quick(steps=2), run)
    first = timeless(run)
    pretrain(nano(), CopyLoader(), quick(steps=2), run)
    assert timeless(run) == first


def test_changing_the_steps_and_resuming_is_refused(tmp_path: Path) -> None:
    pretrain(nano(), CopyLoader(), quick(steps=3), RunFolder(tmp_path))
    with pytest.raises(OverlandError, match="steps = 9, the checkpoint was made for 3"):
        pretrain(nano(), CopyLoader(), quick(steps=9), RunFolder(tmp_path), resume=True)


def test_micro_batches_do_not_change_the_result(tmp_path: Path) -> None:
    one, two = nano(), nano()
    pretrain(one, CopyLoader(), quick(steps=2), RunFolder(tmp_path / "1"))
    pretrain(two, CopyLoader(), quick(steps=2, micro_batches=3), RunFolder(tmp_path / "2"))
    rows = [RunFolder(tmp_path / name).read_metrics() for name in ("1", "2")]
    for a, b in zip(*rows, strict=True):
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-5)
        assert a["train/grad_norm"] == pytest.approx(b["train/grad_norm"], rel=1e-4)


def test_the_loss_falls_and_the_experts_are_metered(tmp_path: Path) -> None:
    class Same(CopyLoader):
        def next(self) -> TokenBatch:
            self.given = 0
            return super().next()

    run = RunFolder(tmp_path)
    pretrain(nano(), Same(), quick(steps=15, lr=3e-3), run)
    rows = run.read_metrics()
    assert rows[-1]["train/loss"] < 0.8 * rows[0]["train/loss"]
    assert rows[-1]["train/tokens"] == 15 * 4 * 23
    assert len(rows[0]["moe/shares/0"]) == 16
    assert rows[0]["moe/dead_experts"] == 0


def test_a_step_that_is_not_finite_is_skipped_and_a_row_of_them_stops(tmp_path: Path) -> None:
    class Poisoned(CopyLoader):
        def next(self) -> TokenBatch:
            batch = super().next()
            if self.given >= 3:
                batch.weights[0, 0] = float("nan")
            return batch

    run, model = RunFolder(tmp_path), nano()
    with pytest.raises(OverlandError, match=r"step 4: loss is nan for the 3th step in a row"):
        pretrain(model, Poisoned(), quick(patience=3), run)
    assert all(torch.isfinite(v).all() for v in model.state_dict().values())
    assert [r["step"] for r in run.read_metrics() if r.get("alarm/kind") == "non_finite"] == [2, 3]


def test_bits_per_byte_is_the_plain_sum_over_every_token_once() -> None:
    model = nano().eval()
    generator = torch.Generator().manual_seed(0)
    documents = [(torch.randint(0, 640, (n,), generator=generator).tolist(), 3 * n) for n in (5, 17, 9, 2)]
    nats = 0.0
    with torch.no_grad():
        for ids, _ in documents:
            row = torch.tensor([ids])
            nats -= token_logprobs(model(row[:, :-1]).logits, row[:, 1:]).sum().item()
    expected = nats / math.log(2) / sum(size for _, size in documents)
    assert evaluate_bpb(model, documents, length=32, batch=3) == pytest.approx(expected, rel=1e-5)
    windows = evaluate_bpb(model, [(documents[1][0], 51)], length=8)
    pieces = [(documents[1][0][:9], 51), (documents[1][0][8:], 0)]
    assert windows == pytest.approx(evaluate_bpb(model, pieces), rel=1e-5)


CHILD = """
import os, signal, sys
from overland.runs import RunFolder
from overland.train import pretrain
from tests.train.helpers import CopyLoader, nano
from tests.train.test_pretrain import quick
class Told(CopyLoader):
    def next(self):
        if self.given == 4:
            os.kill(os.getpid(), int(sys.argv[2]))
        return super().next()
pretrain(nano(), Told(), quick(checkpoint_every=3), RunFolder(sys.argv[1]))
"""


@pytest.mark.parametrize("number, kept", [(signal.SIGINT, 5), (signal.SIGKILL, 3)])
def test_ctrl_c_keeps_every_step_and_a_kill_those_up_to_the_checkpoint(
    tmp_path: Path, number: signal.Signals, kept: int
) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "run"), str(int(number))]
    done = subprocess.run(command, capture_output=True, env=CHILD_ENVIRONMENT, text=True)
    assert done.returncode != 0
    assert ("KeyboardInterrupt" in done.stderr) == (number == signal.SIGINT), done.stderr
    assert max(p.name for p in (tmp_path / "run/checkpoints/pretrain").glob("step-*")) == f"step-{kept:08d}"
    resumed = nano(1)
    pretrain(resumed, CopyLoader(), quick(), RunFolder(tmp_path / "run"), resume=True)
    whole = nano()
    pretrain(whole, CopyLoader(), quick(), RunFolder(tmp_path / "whole"))
    assert all(torch.equal(resumed.state_dict()[n], v) for n, v in whole.state_dict().items())
    assert [r["step"] for r in RunFolder(tmp_path / "run").read_metrics()] == list(range(7))
