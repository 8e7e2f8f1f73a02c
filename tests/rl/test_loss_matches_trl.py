"""The policy loss against TRL 1.16.0's `GRPOTrainer._compute_loss`: loss to 1e-7, gradient to 1e-6.

The stored numbers were written by `trl_driver.py`; the live test repeats them where trl is installed.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from overland.rl.loss import policy_loss, sample_weights

from .trl_driver import CASES, MAX_LENGTH, inputs, trl_loss

GOLDEN = json.loads((Path(__file__).parent / "data" / "trl_grpo_losses.json").read_text())
NORMALISE = {"dapo": "token", "grpo": "sequence", "dr_grpo": "constant"}


def ours(case: dict[str, Any]) -> tuple[float, torch.Tensor, float]:
    x = inputs()
    logps = x["logps"].clone().requires_grad_()
    keep = x["mask"].bool()
    counts = [int(n) for n in x["mask"].sum(-1)]
    weights = torch.tensor(sample_weights(counts, NORMALISE[case["loss_type"]], MAX_LENGTH))  # type: ignore[arg-type]
    beta = case.get("beta", 0.0)
    loss, figures = policy_loss(
        logps[keep],
        x["old"][keep],
        x["advantages"][:, None].expand_as(logps)[keep],
        weights[:, None].expand_as(logps)[keep],
        clip_low=case.get("eps", 0.2),
        clip_high=case.get("eps_high", 0.28),
        reference_logp_N=x["ref"][keep] if beta else None,
        reference_kl=beta,
    )
    loss.backward()
    assert logps.grad is not None
    return float(loss.detach()), logps.grad, figures.means()["clipped_share"]


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_the_stored_trl_numbers(name: str) -> None:
    loss, grad, clipped = ours(CASES[name])
    golden = GOLDEN["cases"][name]
    assert abs(loss - golden["loss"]) <= 1e-7
    assert (grad - torch.tensor(golden["grad"])).abs().max() <= 1e-6
    assert clipped == pytest.approx(golden["clipped_share"], abs=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed; stored numbers are tested")
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_trl_run_here(name: str) -> None:
    loss, grad, _ = ours(CASES[name])
    theirs, their_grad, _ = trl_loss(**CASES[name])
    assert abs(loss - theirs) <= 1e-7
    assert (grad - their_grad).abs().max() <= 1e-6
