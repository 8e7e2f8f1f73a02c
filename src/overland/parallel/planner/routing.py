"""How uneven natural routing is over expert-parallel ranks: everyone waits for the rank with the most tokens.

An expert's share of the tokens varies from expert to expert with coefficient of variation SPREAD; a rank has the mean
of its E / ep experts, and the step the largest of ep such means. SPREAD is set by measured pairs of runs with forced
even and with natural routing (Qwen3-235B-A22B on 256 H100, EP8, 16k to 128k tokens; Megatron-MoE-ModelZoo).
"""

from __future__ import annotations

from math import log, sqrt

SPREAD = 1.1


def imbalance(experts: int, ep: int, spread: float = SPREAD) -> float:
    """Expected load of the busiest of `ep` ranks over the mean (1 where nothing is split)."""
    if ep <= 1 or experts <= 1:
        return 1.0
    per_rank = spread / sqrt(experts / ep)
    return min(float(ep), 1 + per_rank * sqrt(2 * log(ep)))
