"""Our algorithms against TRL 1.16's `_compute_loss` and verl 0.9.1's `core_algos`: loss to 1e-7, gradient to 1e-6.

The numbers under data/ were written by peer_driver.py; where the peers' environment is installed (peers.py) they are
computed anew and all tests run on those too.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from overland.rl import (
    CISPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    Algorithm,
    CorrectionSection,
    DrGRPO,
    Group,
    ReinforcePlusPlus,
    Sample,
    policy_loss,
    sample_weights,
)
from overland.rl.algorithms import Scored, Tokens
from overland.rl.correction import importance_weights

from . import peer_cases as cases
from .peers import PYTHON, installed

HERE = Path(__file__).parent
X = cases.inputs()
KEEP = X["mask"].bool()
ROW = torch.arange(cases.B)[:, None].expand(cases.B, cases.T)[KEEP]
COUNTS = [int(n) for n in X["mask"].sum(-1)]


@functools.cache
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "data/peers.json").read_text())
    return found


@pytest.fixture(scope="module", params=["stored", "live"])
def peers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the peers say, as it was written down and, where they are installed, said again now."""
    if request.param == "stored":
        return stored()
    if not installed("trl", "verl"):
        pytest.skip("trl and verl are not installed (tests/rl/peers.py says how); their stored numbers are tested")
    out = tmp_path_factory.mktemp("peers") / "peers.json"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(PYTHON), str(HERE / "peer_driver.py"), str(out)],
        env=clean | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(out.read_text())
    assert (found["versions"]["trl"], found["versions"]["verl"]) == ("1.16.0", "0.9.1")
    return found


def ours(algorithm: Algorithm, *, beta: float = 0.0, corrected: bool = False) -> tuple[float, Tensor, float]:
    logps = X["logps"].clone().requires_grad_()
    weights = torch.tensor(sample_weights(COUNTS, algorithm.normalise, cases.T))
    loss, figures = policy_loss(
        algorithm,
        Tokens(logps[KEEP], X["old"][KEEP], X["advantages"][:, None].expand_as(logps)[KEEP], ROW),
        (X["sampler"] if corrected else X["old"])[KEEP],
        weights[:, None].expand_as(logps)[KEEP],
        correction=CorrectionSection(level="token", action="truncate", high=1.2) if corrected else None,
        reference_logp_N=X["ref"][KEEP] if beta else None,
        reference_kl=beta,
    )
    loss.backward()
    assert logps.grad is not None
    return float(loss.detach()), logps.grad, figures.means()["clipped_share"]


def same(found: tuple[float, Tensor, float], theirs: Mapping[str, Any], clipped: bool = True) -> None:
    loss, gradient, share = found
    assert abs(loss - theirs["loss"]) <= 1e-7
    wanted = torch.tensor(theirs["grad"])
    assert (gradient - wanted).abs().max() <= 1e-6
    assert wanted.abs().max() > 1e-3
    if clipped and theirs["clipped_share"] is not None:
        assert share == pytest.approx(theirs["clipped_share"], abs=1e-6)


def trl_twin(
    loss_type: str, beta: float = 0.0, eps: float = 0.2, eps_high: float = 0.28, level: str = "token", **_: Any
) -> Algorithm:
    if level == "sequence":
        return GSPO(clip_low=eps, clip_high=eps_high)
    if loss_type == "cispo":
        return CISPO(clip_low=1.0, clip_high=eps_high - 1.0)  # TRL's bound is on the ratio itself
    if loss_type == "dr_grpo":
        return DrGRPO(clip_low=eps, clip_high=eps_high)
    return GRPO(clip_low=eps, clip_high=eps_high, normalise="token" if loss_type == "dapo" else "sequence")


@pytest.mark.parametrize("name", cases.TRL)
def test_loss_and_gradient_equal_those_of_trl(name: str, peers: dict[str, Any]) -> None:
    case = cases.TRL[name]
    found = ours(trl_twin(**case), beta=case.get("beta", 0.0), corrected=case.get("corrected", False))
    # TRL counts a clipped sample once, we count its tokens
    same(found, peers["trl"][name], clipped=case.get("level") != "sequence")


VERL = {
    "vanilla": GRPO(),
    "vanilla_sequence": GRPO(normalise="sequence"),
    "vanilla_constant": GRPO(normalise="constant"),
    "gspo": GSPO(clip_low=0.01, clip_high=0.02),
    "cispo": CISPO(clip_low=0.3, clip_high=0.3),
    "vanilla_corrected": GRPO(),
}


@pytest.mark.parametrize("name", cases.VERL_LOSSES)
def test_loss_and_gradient_equal_those_of_verl(name: str, peers: dict[str, Any]) -> None:
    same(ours(VERL[name], corrected=name.endswith("corrected")), peers["verl_losses"][name])


def groups() -> list[Group]:
    """The batch as samples: mask 1 is a sampled token, a hole is a tool's answer."""
    found: dict[int, list[Sample]] = {}
    for i, (group, reward) in enumerate(zip(cases.GROUPS, cases.REWARDS, strict=True)):
        trained = (False, *X["mask"][i].bool().tolist())
        ids = tuple(range(cases.T + 1))
        logps = tuple(x if on else 0.0 for x, on in zip((0.0, *X["old"][i].tolist()), trained, strict=True))
        found.setdefault(group, []).append(Sample(str(i), ids, 1, trained, logps, reward))
    return [Group("toy", 0, "high", str(g), tuple(samples)) for g, samples in found.items()]


ADVANTAGES: dict[str, Algorithm] = {
    "grpo": GRPO(),
    "grpo_std": GRPO(scale_by_std=True),
    "rloo": RLOO(),
    "reinforce_plus_plus": ReinforcePlusPlus(),
    "reinforce_plus_plus_discounted": ReinforcePlusPlus(gamma=0.97),
    "baseline": ReinforcePlusPlus(baseline="group"),
}


def spread(advantages: Mapping[str, Any]) -> Tensor:
    """[B, T] from advantages by sample id."""
    out = torch.zeros(cases.B, cases.T)
    for id, advantage in advantages.items():
        own = KEEP[int(id)]
        out[int(id), own] = torch.tensor(advantage, dtype=torch.float32)
    return out


@pytest.mark.parametrize("name", cases.VERL_ADVANTAGES)
def test_advantages_equal_those_of_verl(name: str, peers: dict[str, Any]) -> None:
    found = spread(ADVANTAGES[name].batch_advantages(groups(), Scored()))
    assert (found - torch.tensor(peers["verl_advantages"][name])).abs().max() <= 1e-6


@pytest.mark.parametrize("name", cases.GAE)
def test_gae_on_the_sampled_tokens_equals_verl_with_holes(name: str, peers: dict[str, Any]) -> None:
    gamma, lam = cases.GAE[name]
    algorithm = PPO(gamma=gamma, lam=lam)
    values = {str(i): tuple(X["values"][i][KEEP[i]].tolist()) for i in range(cases.B)}
    found = spread(algorithm.batch_advantages(groups(), Scored(value=values)))
    assert (found - torch.tensor(peers["verl_gae"][name]["advantages"])).abs().max() <= 1e-6
    returns = spread({id: algorithm.returns(cases.REWARDS[int(id)], v) for id, v in values.items()})
    assert (returns - torch.tensor(peers["verl_gae"][name]["returns"])).abs().max() <= 1e-6


def test_value_loss_equals_that_of_verl(peers: dict[str, Any]) -> None:
    values = X["new_values"].clone().requires_grad_()
    each = PPO(value_clip=cases.VALUE_CLIP).value_loss(values[KEEP], X["values"][KEEP], X["returns"][KEEP])
    loss = (each / sum(COUNTS)).sum()
    loss.backward()
    assert values.grad is not None
    same((float(loss.detach()), values.grad, 0.0), peers["verl_value"], clipped=False)


@pytest.mark.parametrize("name", cases.VERL_WEIGHTS)
def test_importance_weights_equal_those_of_verl(name: str, peers: dict[str, Any]) -> None:
    level, low, high = cases.VERL_WEIGHTS[name]
    section = CorrectionSection.model_validate(
        {"level": level, "action": "truncate" if low is None else "mask", "low": low or 0.0, "high": high}
    )
    weights, changed = importance_weights(X["old"][KEEP], X["sampler"][KEEP], ROW, section)
    wanted = torch.tensor(peers["verl_weights"][name])[KEEP]
    assert (weights - wanted).abs().max() <= 1e-6
    assert changed.any()
    assert not changed.all()
