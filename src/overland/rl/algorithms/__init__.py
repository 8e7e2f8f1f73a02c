"""Algorithms, one a file: rewards to advantages, and what each trained token costs."""

from overland.rl.algorithms.base import Advantage, Algorithm, Normalise, Scored, Tokens
from overland.rl.algorithms.choice import AlgorithmChoice
from overland.rl.algorithms.cispo import CISPO
from overland.rl.algorithms.dapo import DAPO
from overland.rl.algorithms.distil import Distil
from overland.rl.algorithms.dr_grpo import DrGRPO
from overland.rl.algorithms.grpo import GRPO
from overland.rl.algorithms.gspo import GSPO
from overland.rl.algorithms.mirror import Mirror
from overland.rl.algorithms.ppo import PPO
from overland.rl.algorithms.reinforce import Reinforce
from overland.rl.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from overland.rl.algorithms.rloo import RLOO
from overland.rl.algorithms.successes import Successes

__all__ = [
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "Advantage",
    "Algorithm",
    "AlgorithmChoice",
    "Distil",
    "DrGRPO",
    "Mirror",
    "Normalise",
    "Reinforce",
    "ReinforcePlusPlus",
    "Scored",
    "Successes",
    "Tokens",
]
