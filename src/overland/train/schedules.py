"""Learning-rate schedules as plain functions of the step: nothing to save, nothing to resume."""

from __future__ import annotations

import math

from overland.errors import UsageError

SCHEDULES = ("cosine", "wsd", "constant")


def learning_rate(
    step: int, steps: int, peak: float, *, warmup: int = 0, kind: str = "cosine", floor: float = 0.0, decay: float = 0.2
) -> float:
    """The rate for 0-based `step` of `steps`.

    All kinds rise linearly over `warmup` steps. `cosine` falls to `floor * peak` along half a wave; `wsd`
    (warm-up, stable, decay) holds the peak and falls in a straight line over the last `decay` share of the steps.
    """
    if kind not in SCHEDULES:
        raise UsageError(f"schedule = {kind!r} is not a schedule; valid: {', '.join(SCHEDULES)}")
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    low = floor * peak
    if kind == "cosine":
        past = (step - warmup) / max(1, steps - warmup)
        return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, past)))
    if kind == "wsd":
        falling = max(1, round(decay * steps))
        left = max(0, steps - step)
        return low + (peak - low) * min(1.0, left / falling)
    return peak
