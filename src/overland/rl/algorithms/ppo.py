"""Proximal policy optimisation (Schulman et al. 2017) with a value head and GAE (Schulman et al. 2016).

Values, advantages and returns live on the trained tokens alone: what a tool answered is no step of the policy, so the
estimate runs from one sampled token to the next over whatever lies between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import Advantage, Algorithm, Scored, Tokens, clipped, whitened
from overland.rl.samples import Group


class PPO(Algorithm):
    """Advantages from a critic: a linear value head on the policy's last hidden state."""

    type: Literal["ppo"] = "ppo"
    """A critic beside the policy, generalised advantage estimation, a clipped ratio."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount by trained token."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda: 1 trusts the reward, 0 the critic."""
    clip_low: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from above at 1 + clip_high."""
    value_clip: float = Field(default=0.2, gt=0)
    """The critic moves at most this far from its old value in one batch before its loss goes flat."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the critic's loss."""
    value_trunk: bool = False
    """Let the critic's loss reach the policy's own layers, and not only the value head."""
    whiten: bool = True
    """Bring the batch's advantages to mean 0 and variance 1."""

    def batch_advantages(self, groups: Sequence[Group], scored: Scored) -> Mapping[str, Advantage]:
        tokens, found = {}, {}
        for sample in (s for g in groups for s in g.judged if s.trained_tokens):
            assert sample.reward is not None
            tokens[sample.id] = sample.trained_tokens
            found[sample.id] = gae(sample.reward, scored.value[sample.id], self.gamma, self.lam)
        return whitened(found, tokens) if self.whiten else found

    def returns(self, reward: float, values: tuple[float, ...]) -> tuple[float, ...]:
        """What the critic should have said: advantage before whitening plus old value."""
        advantages = gae(reward, values, self.gamma, self.lam)
        return tuple(a + v for a, v in zip(advantages, values, strict=True))

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return clipped(tokens, self.clip_low, self.clip_high)

    def value_loss(self, value_N: Tensor, old_value_N: Tensor, return_N: Tensor) -> Tensor:
        """Half the squared error [N], the worse of the free and the clipped value."""
        held_N = torch.clamp(value_N, old_value_N - self.value_clip, old_value_N + self.value_clip)
        return 0.5 * torch.maximum((value_N - return_N) ** 2, (held_N - return_N) ** 2)


def gae(reward: float, values: Sequence[float], gamma: float, lam: float) -> tuple[float, ...]:
    """Advantages of the trained tokens of one sample whose `reward` comes with the last of them."""
    advantages = [0.0] * len(values)
    next_value = running = 0.0
    for t in reversed(range(len(values))):
        earned = reward if t == len(values) - 1 else 0.0
        delta = earned + gamma * next_value - values[t]
        running = delta + gamma * lam * running
        next_value, advantages[t] = values[t], running
    return tuple(advantages)
