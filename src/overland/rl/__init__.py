"""Reinforcement learning: rollouts in groups, advantages, effort budgets, the clipped update, alarms, controls."""

from overland.rl.algorithms import GRPO, Algorithm, Successes
from overland.rl.budgets import Budgets
from overland.rl.controls import rejection_sampling
from overland.rl.curriculum import Curriculum, Order, PassRates
from overland.rl.loss import LossFigures, likelihood_loss, policy_loss, sample_weights
from overland.rl.samples import Group, Sample
from overland.rl.section import DomainSection, EffortSection, EffortsSection, RLSection, WatchdogSection
from overland.rl.source import Rollouts
from overland.rl.trainer import RLResult, train_rl
from overland.rl.watchdogs import Collapse, Watchdogs

__all__ = [
    "GRPO",
    "Algorithm",
    "Budgets",
    "Collapse",
    "Curriculum",
    "DomainSection",
    "EffortSection",
    "EffortsSection",
    "Group",
    "LossFigures",
    "Order",
    "PassRates",
    "RLResult",
    "RLSection",
    "Rollouts",
    "Sample",
    "Successes",
    "WatchdogSection",
    "Watchdogs",
    "likelihood_loss",
    "policy_loss",
    "rejection_sampling",
    "sample_weights",
    "train_rl",
]
