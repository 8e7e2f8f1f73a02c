"""The algorithms that a recipe may name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

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

AlgorithmChoice = Annotated[
    GRPO | DrGRPO | DAPO | GSPO | CISPO | RLOO | Reinforce | ReinforcePlusPlus | PPO | Mirror | Distil | Successes,
    Field(discriminator="type"),
]
"""`type` chooses; the other fields are the algorithm's own."""
