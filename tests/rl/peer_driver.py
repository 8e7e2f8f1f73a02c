"""Runs TRL's and verl's own code on the cases and writes what they say: `python tests/rl/peer_driver.py OUT.json`.

For an interpreter that has trl 1.16 and verl 0.9.1 (see test_matches_peers.py). What it writes is kept under data/ for
machines without one.
"""

from __future__ import annotations

import collections
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import peer_cases as cases

X = cases.inputs()


class _Accelerator:
    num_processes = 1
    sync_gradients = True

    def gather(self, x: Any) -> Any:
        return x

    def gather_for_metrics(self, x: Any) -> Any:
        return x

    def reduce(self, x: Any, reduction: str = "sum") -> Any:
        return x


def answer(loss: torch.Tensor, at: torch.Tensor) -> dict[str, Any]:
    loss.backward()
    assert at.grad is not None
    return {"loss": float(loss.detach()), "grad": at.grad.tolist()}


def trl_loss(
    loss_type: str,
    beta: float = 0.0,
    eps: float = 0.2,
    eps_high: float = 0.28,
    level: str = "token",
    corrected: bool = False,
) -> dict[str, Any]:
    """Drives `GRPOTrainer._compute_loss` with given log-probabilities: no model, no data set."""
    from trl import GRPOTrainer

    logps = X["logps"].clone().requires_grad_()
    stub = types.SimpleNamespace(
        args=types.SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=_Accelerator(),
        model=types.SimpleNamespace(training=True),
        loss_type=loss_type,
        beta=beta,
        epsilon_low=eps,
        epsilon_high=eps_high,
        importance_sampling_level=level,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=corrected,
        vllm_importance_sampling_correction=True,
        max_completion_length=cases.T,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        _metrics={"train": collections.defaultdict(list), "eval": collections.defaultdict(list)},
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    stub._get_per_token_logps_and_entropies = lambda *a, **k: (logps, torch.zeros_like(logps), None)
    ids = torch.zeros(logps.shape, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(logps.shape[0], 1),
        "completion_ids": ids,
        "completion_mask": X["mask"],
        "advantages": X["advantages"],
        "num_items_in_batch": X["mask"].sum(),
        "old_per_token_logps": X["old"],
    }
    if beta:
        batch["ref_per_token_logps"] = X["ref"]
    if corrected:  # TRL's token_truncate, inline in _generate_and_score_completions
        batch["importance_sampling_ratio"] = torch.exp((X["old"] - X["sampler"]) * X["mask"]).clamp(max=1.2)
    found = answer(GRPOTrainer._compute_loss(stub, None, batch), logps)
    clipped = stub._metrics["train"].get("clip_ratio/region_mean")
    return {**found, "clipped_share": clipped[-1] if clipped else None}


class _Config:
    """What verl's losses read of an ActorConfig; the dual clip, which we do not have, is out of reach."""

    def __new__(cls, low: float, high: float) -> Any:
        from verl.workers.config import ActorConfig

        config = object.__new__(ActorConfig)
        for name, value in {
            "clip_ratio": low,
            "clip_ratio_low": low,
            "clip_ratio_high": high,
            "clip_ratio_c": 1e9,
            "global_batch_info": {},
        }.items():
            object.__setattr__(config, name, value)
        return config


def verl_loss(name: str) -> dict[str, Any]:
    from verl.trainer.ppo import core_algos

    logps = X["logps"].clone().requires_grad_()
    kind, _, rest = name.partition("_")
    low, high = {"gspo": (0.01, 0.02), "cispo": (0.3, 0.3)}.get(kind, (0.2, 0.28))
    mode = {"sequence": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}.get(rest, "token-mean")
    if kind == "gspo":
        mode = "seq-mean-token-mean"
    weights = torch.exp(X["old"] - X["sampler"]).clamp(max=1.2) if rest == "corrected" else None
    loss, figures = core_algos.get_policy_loss_fn(kind)(
        X["old"],
        logps,
        X["advantages"][:, None].expand_as(logps),
        X["mask"],
        loss_agg_mode=mode,
        config=_Config(low, high),
        rollout_is_weights=weights,
    )
    return {**answer(loss, logps), "clipped_share": figures["actor/pg_clipfrac"]}


def verl_advantages(name: str) -> list[list[float]]:
    import numpy as np
    from verl.trainer.ppo import core_algos

    mask = X["mask"]
    last = (mask * torch.arange(1, cases.T + 1)).argmax(-1)
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(cases.B), last] = torch.tensor(cases.REWARDS)
    index = np.array(cases.GROUPS)
    if name.startswith("grpo"):
        found = core_algos.compute_grpo_outcome_advantage(
            rewards, mask, index, epsilon=1e-4, norm_adv_by_std_in_grpo=name == "grpo_std"
        )[0]
    elif name == "rloo":
        found = core_algos.compute_rloo_outcome_advantage(rewards, mask, index)[0]
    elif name == "baseline":
        found = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, index)[0]
    else:
        gamma = 0.97 if name.endswith("discounted") else 1.0
        config = types.SimpleNamespace(gamma=gamma)
        found = core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=config)[0]
    return (found * mask).tolist()


def verl_gae(gamma: float, lam: float) -> dict[str, Any]:
    from verl.trainer.ppo import core_algos

    mask = X["mask"]
    last = (mask * torch.arange(1, cases.T + 1)).argmax(-1)
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(cases.B), last] = torch.tensor(cases.REWARDS)
    advantages, returns = core_algos.compute_gae_advantage_return(rewards, X["values"], mask, gamma, lam)
    return {"advantages": (advantages * mask).tolist(), "returns": (returns * mask).tolist()}


def verl_weights(level: str, low: float | None, high: float) -> list[list[float]]:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    spec: Any = high if low is None else f"{low}_{high}"
    weights, _ = compute_rollout_correction_weights(X["old"] - X["sampler"], X["mask"], level, spec)
    return (weights * X["mask"]).tolist()


def verl_value() -> dict[str, Any]:
    from verl.trainer.ppo import core_algos

    values = X["new_values"].clone().requires_grad_()
    loss, _ = core_algos.compute_value_loss(values, X["returns"], X["values"], X["mask"], cases.VALUE_CLIP)
    return answer(loss, values)


def main(out: str) -> None:
    import trl
    import verl

    found = {
        "versions": {"trl": trl.__version__, "verl": verl.__version__, "torch": torch.__version__},
        "trl": {name: trl_loss(**case) for name, case in cases.TRL.items()},
        "verl_losses": {name: verl_loss(name) for name in cases.VERL_LOSSES},
        "verl_advantages": {name: verl_advantages(name) for name in cases.VERL_ADVANTAGES},
        "verl_gae": {name: verl_gae(*case) for name, case in cases.GAE.items()},
        "verl_weights": {name: verl_weights(*case) for name, case in cases.VERL_WEIGHTS.items()},
        "verl_value": verl_value(),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
