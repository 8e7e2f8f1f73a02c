"""GRPO done right (Liu et al. 2025, "Understanding R1-Zero-Like Training", §3): no hidden weights on length or ease."""

from __future__ import annotations

from typing import Literal

from overland.rl.algorithms.base import Normalise
from overland.rl.algorithms.grpo import GRPO


class DrGRPO(GRPO):
    """No division by the standard deviation, and every token weighs the same however long its sample is."""

    type: Literal["dr_grpo"] = "dr_grpo"  # type: ignore[assignment]
    """GRPO without its two biases: neither a sample's length nor its group's spread changes a token's weight."""
    normalise: Normalise = "constant"
    """A token's share of the loss: of all trained tokens (DAPO), of its sample (GRPO), or constant (Dr. GRPO)."""
