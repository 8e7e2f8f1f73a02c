"""REINFORCE (Williams 1992), with the baselines that make it usable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Literal

from torch import Tensor

from overland.rl.algorithms.base import Advantage, GroupAlgorithm, Scored, Tokens, likelihood
from overland.rl.samples import Group


class Reinforce(GroupAlgorithm):
    """-(reward - baseline) * log p, nothing clipped: for samples of the policy that is updated."""

    type: Literal["reinforce"] = "reinforce"
    """Reward minus a baseline times the log-likelihood."""
    baseline: Literal["none", "group", "batch"] = "batch"
    """What is subtracted: nothing, the mean of the group, or the mean of the batch."""

    @property
    def wants_variance(self) -> bool:
        return self.baseline == "group"

    def advantages(self, group: Group) -> dict[str, float]:
        rewards = {s.id: s.reward for s in group.judged if s.reward is not None}
        if self.baseline != "group" or not rewards:
            return rewards
        middle = mean(rewards.values())
        return {id: reward - middle for id, reward in rewards.items()} if group.has_variance else {}

    def batch_advantages(self, groups: Sequence[Group], scored: Scored) -> Mapping[str, Advantage]:
        rewards = {id: reward for group in groups for id, reward in self.advantages(group).items()}
        if self.baseline != "batch" or not rewards:
            return rewards
        middle = mean(rewards.values())
        return {id: reward - middle for id, reward in rewards.items()}

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return likelihood(tokens)
