"""The batch and the cases on which our algorithms are held against TRL and verl. Needs torch alone.

Shapes: B 6 samples of two groups, up to T 14 tokens, with holes in the mask as tool answers leave them.
"""

from __future__ import annotations

from typing import Any

import torch

B, T = 6, 14
GROUPS = (0, 0, 0, 1, 1, 1)
REWARDS = (1.0, 0.0, 0.5, 0.0, 1.0, 1.0)

# name -> what TRL's _compute_loss is asked for
TRL: dict[str, dict[str, Any]] = {
    "token": {"loss_type": "dapo"},
    "token_with_kl": {"loss_type": "dapo", "beta": 0.05},
    "token_tight_clip": {"loss_type": "dapo", "eps": 0.1, "eps_high": 0.1},
    "sequence": {"loss_type": "grpo"},
    "sequence_with_kl": {"loss_type": "grpo", "beta": 0.05},
    "constant": {"loss_type": "dr_grpo"},
    "gspo": {"loss_type": "grpo", "level": "sequence", "eps": 0.01, "eps_high": 0.02},
    "cispo": {"loss_type": "cispo", "eps_high": 1.3},
    "corrected": {"loss_type": "dapo", "corrected": True},
    "corrected_with_kl": {"loss_type": "grpo", "beta": 0.05, "corrected": True},
}
VERL_LOSSES = ("vanilla", "vanilla_sequence", "vanilla_constant", "gspo", "cispo", "vanilla_corrected")
VERL_ADVANTAGES = ("grpo", "grpo_std", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_discounted", "baseline")
# level, low, high; low None truncates, else masks
VERL_WEIGHTS = {
    "token_truncate": ("token", None, 1.2),
    "token_mask": ("token", 0.8, 1.2),
    "sequence_truncate": ("sequence", None, 1.2),
    "sequence_mask": ("sequence", 0.5, 1.5),
}
GAE = {"plain": (1.0, 0.95), "discounted": (0.97, 0.9), "monte_carlo": (1.0, 1.0)}
VALUE_CLIP = 0.2


def inputs() -> dict[str, torch.Tensor]:
    """`logps` is the policy now, `old` before the update, `sampler` what the sampler stored, `ref` the reference."""
    g = torch.Generator().manual_seed(7)
    old = -2 * torch.rand(B, T, generator=g)
    lengths = torch.randint(5, T + 1, (B,), generator=g)
    mask = (torch.arange(T)[None] < lengths[:, None]).float()
    mask[0, 2:4] = 0.0
    mask[4, 1] = 0.0
    return {
        "logps": old + 0.3 * torch.randn(B, T, generator=g),
        "old": old,
        "sampler": old + 0.2 * torch.randn(B, T, generator=g),
        "ref": old + 0.2 * torch.randn(B, T, generator=g),
        "mask": mask,
        "advantages": torch.randn(B, generator=g),
        "values": torch.randn(B, T, generator=g),
        "new_values": torch.randn(B, T, generator=g),
        "returns": torch.randn(B, T, generator=g),
    }
