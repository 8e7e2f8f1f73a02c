"""Pretraining and supervised tuning: loops, losses, optimiser, expert balance, checkpoints, meters and alarms."""

from __future__ import annotations

from overland.train.alarms import Alarm, Alarms, ExpertLoad, LossSpike, NonFinite
from overland.train.applied import applied
from overland.train.balance import Balance, z_loss
from overland.train.balance_auxiliary import AuxiliaryLoss, auxiliary_loss
from overland.train.balance_quantile import QuantileBalance, histogram_bias, margin_histogram, quantile_bias
from overland.train.balance_sign import SignBalance
from overland.train.balancing import make_balance
from overland.train.batch import Loader, TokenBatch
from overland.train.checkpoint import Checkpoints
from overland.train.dialogues import Dialogue, DialogueOrder, Group, group_by_prefix
from overland.train.drill import Drilled
from overland.train.evaluate import evaluate_bpb, evaluate_dialogues
from overland.train.loading import open_loader
from overland.train.losses import cross_entropy, token_logprobs
from overland.train.meters import (
    ExpertCounts,
    Throughput,
    bits_per_byte,
    expert_metrics,
    router_agreement,
    utilisation,
)
from overland.train.optim import adamw, clip_gradients, decay_groups, set_learning_rate
from overland.train.pretrain import pretrain
from overland.train.ranks import Ranks, in_ranks
from overland.train.schedules import SCHEDULES, learning_rate
from overland.train.section import LoopSection, PretrainSection, SFTSection
from overland.train.sft import sft
from overland.train.shared_prefix import GroupedOutput, run_groups

__all__ = [
    "SCHEDULES",
    "Alarm",
    "Alarms",
    "AuxiliaryLoss",
    "Balance",
    "Checkpoints",
    "Dialogue",
    "DialogueOrder",
    "Drilled",
    "ExpertCounts",
    "ExpertLoad",
    "Group",
    "GroupedOutput",
    "Loader",
    "LoopSection",
    "LossSpike",
    "NonFinite",
    "PretrainSection",
    "QuantileBalance",
    "Ranks",
    "SFTSection",
    "SignBalance",
    "Throughput",
    "TokenBatch",
    "adamw",
    "applied",
    "auxiliary_loss",
    "bits_per_byte",
    "clip_gradients",
    "cross_entropy",
    "decay_groups",
    "evaluate_bpb",
    "evaluate_dialogues",
    "expert_metrics",
    "group_by_prefix",
    "histogram_bias",
    "in_ranks",
    "learning_rate",
    "make_balance",
    "margin_histogram",
    "open_loader",
    "pretrain",
    "quantile_bias",
    "router_agreement",
    "run_groups",
    "set_learning_rate",
    "sft",
    "token_logprobs",
    "utilisation",
    "z_loss",
]
