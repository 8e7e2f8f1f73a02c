"""Reinforcement learning: rollouts in groups, advantages, effort budgets, the clipped update, alarms, controls."""

from overland.rl.algorithms import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    Algorithm,
    Distil,
    DrGRPO,
    Mirror,
    Reinforce,
    ReinforcePlusPlus,
    Successes,
)
from overland.rl.budgets import Budgets
from overland.rl.controls import expert_iteration, rejection_sampling
from overland.rl.correction import CorrectionSection
from overland.rl.curriculum import Curriculum, Order, PassRates
from overland.rl.loss import LossFigures, policy_loss, sample_weights
from overland.rl.samples import Group, Sample
from overland.rl.section import (
    DomainSection,
    EffortSection,
    EffortsSection,
    OverlongSection,
    RLSection,
    WatchdogSection,
)
from overland.rl.source import Rollouts
from overland.rl.trainer import RLResult, train_rl
from overland.rl.watchdogs import Collapse, Watchdogs

__all__ = [
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "Algorithm",
    "Budgets",
    "Collapse",
    "CorrectionSection",
    "Curriculum",
    "Distil",
    "DomainSection",
    "DrGRPO",
    "EffortSection",
    "EffortsSection",
    "Group",
    "LossFigures",
    "Mirror",
    "Order",
    "OverlongSection",
    "PassRates",
    "RLResult",
    "RLSection",
    "Reinforce",
    "ReinforcePlusPlus",
    "Rollouts",
    "Sample",
    "Successes",
    "WatchdogSection",
    "Watchdogs",
    "expert_iteration",
    "policy_loss",
    "rejection_sampling",
    "sample_weights",
    "train_rl",
]
