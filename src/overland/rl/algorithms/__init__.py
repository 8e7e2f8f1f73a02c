"""Advantage estimators: how the rewards of a group become one number per sample."""

from overland.rl.algorithms.base import Algorithm
from overland.rl.algorithms.grpo import GRPO
from overland.rl.algorithms.successes import Successes

__all__ = ["GRPO", "Algorithm", "Successes"]
