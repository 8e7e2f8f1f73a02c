"""Group-relative policy optimisation (Shao et al. 2024, DeepSeekMath, §4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, stdev

from overland.rl.samples import Group


@dataclass(frozen=True)
class GRPO:
    """Group-relative advantages: reward minus the mean of its group.

    Groups are the samples of one task at one effort. A sample whose reward is None (an infrastructure failure) takes
    no part; a group with fewer than two survivors, or without variance, gives no gradient and is counted.

    `scale_by_std` divides by the group's sample standard deviation + `eps`, as the paper does. It is off by default:
    it weighs nearly solved and nearly hopeless tasks up (Liu et al. 2025, Dr. GRPO, §3).
    """

    scale_by_std: bool = False
    eps: float = 1e-4

    def advantages(self, group: Group) -> dict[str, float]:
        if not group.has_variance:
            return {}
        rewards = {s.id: s.reward for s in group.samples if s.reward is not None}
        baseline = mean(rewards.values())
        scale = stdev(rewards.values()) + self.eps if self.scale_by_std else 1.0
        return {id: (reward - baseline) / scale for id, reward in rewards.items()}
