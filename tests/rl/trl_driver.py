"""Drives `trl.GRPOTrainer._compute_loss` with given log-probabilities and advantages: no model, no data set.

Run as a script with an interpreter that has trl (`python tests/rl/trl_driver.py OUT.json`) it writes the golden numbers
that `test_loss_matches_trl.py` holds our loss against where trl is not installed.
"""

from __future__ import annotations

import collections
import json
import sys
import types
from typing import Any

import torch

CASES: dict[str, dict[str, Any]] = {
    "token": {"loss_type": "dapo"},
    "token_with_kl": {"loss_type": "dapo", "beta": 0.05},
    "token_tight_clip": {"loss_type": "dapo", "eps": 0.1, "eps_high": 0.1},
    "sequence": {"loss_type": "grpo"},
    "sequence_with_kl": {"loss_type": "grpo", "beta": 0.05},
    "constant": {"loss_type": "dr_grpo"},
}
MAX_LENGTH = 24


def inputs() -> dict[str, torch.Tensor]:
    """The batch of every case: B 6 samples of up to T 24 tokens, with holes in the mask as tool answers leave them."""
    g = torch.Generator().manual_seed(7)
    B, T = 6, MAX_LENGTH
    old = -2 * torch.rand(B, T, generator=g)
    lengths = torch.randint(5, T + 1, (B,), generator=g)
    mask = (torch.arange(T)[None] < lengths[:, None]).float()
    mask[0, 2:4] = 0.0
    return {
        "logps": old + 0.3 * torch.randn(B, T, generator=g),
        "old": old,
        "ref": old + 0.2 * torch.randn(B, T, generator=g),
        "mask": mask,
        "advantages": torch.randn(B, generator=g),
    }


class _Accelerator:
    num_processes = 1
    sync_gradients = True

    def gather(self, x: Any) -> Any:
        return x

    def gather_for_metrics(self, x: Any) -> Any:
        return x

    def reduce(self, x: Any, reduction: str = "sum") -> Any:
        return x


def trl_loss(
    loss_type: str, beta: float = 0.0, eps: float = 0.2, eps_high: float = 0.28
) -> tuple[float, torch.Tensor, float]:
    """(loss, gradient with respect to the log-probabilities [B, T], clipped share)."""
    from trl import GRPOTrainer

    x = inputs()
    logps = x["logps"].clone().requires_grad_()
    stub = types.SimpleNamespace(
        args=types.SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=_Accelerator(),
        model=types.SimpleNamespace(training=True),
        loss_type=loss_type,
        beta=beta,
        epsilon_low=eps,
        epsilon_high=eps_high,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=True,
        max_completion_length=MAX_LENGTH,
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
        "completion_mask": x["mask"],
        "advantages": x["advantages"],
        "num_items_in_batch": x["mask"].sum(),
        "old_per_token_logps": x["old"],
    }
    if beta:
        batch["ref_per_token_logps"] = x["ref"]
    loss = GRPOTrainer._compute_loss(stub, None, batch)
    loss.backward()
    assert logps.grad is not None
    return float(loss.detach()), logps.grad, stub._metrics["train"]["clip_ratio/region_mean"][-1]


if __name__ == "__main__":
    import trl

    golden: dict[str, Any] = {"trl": trl.__version__, "torch": torch.__version__, "cases": {}}
    for name, case in CASES.items():
        loss, grad, clipped = trl_loss(**case)
        golden["cases"][name] = {"loss": loss, "grad": grad.tolist(), "clipped_share": clipped}
    with open(sys.argv[1], "w") as out:
        json.dump(golden, out)
