"""Decoupled clip and dynamic sampling (Yu et al. 2025, DAPO, §3)."""

from __future__ import annotations

from typing import Literal

from overland.rl.algorithms.grpo import GRPO


class DAPO(GRPO):
    """Clip-higher, token-level loss, advantages scaled by the group's standard deviation.

    Its two other parts belong to the batch, not to the loss: `rl.extra_rounds` deals new groups for those without
    variance (dynamic sampling), `rl.overlong` charges for answers that come near the limit (overlong shaping).
    """

    type: Literal["dapo"] = "dapo"  # type: ignore[assignment]
    """GRPO with clip-higher and a token-level loss, scaled by the group's standard deviation."""
    scale_by_std: bool = True
    """Divide the advantage by the group's standard deviation."""
