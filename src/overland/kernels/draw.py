"""Sampling from whole distributions: one token a row and its log-probability, in one pass.

    p = softmax(x / temperature);  token = the first i with sum_{j <= i} p_j > u (temperature 0: the most likely one)

Shapes: R lines of logits, B rows that draw, V vocabulary. The plain form, with everything that may cut or change a
distribution, is overland.engine.sampler's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("draw", draw="ppppppp ii")


def draws(logits_RV: Tensor) -> bool:
    """Whether `draw` runs for these logits: on the CPU, fp32 or fp64, and the compiled form built."""
    return _native.runs(logits_RV)


def draw(
    logits_RV: Tensor,
    lines: Sequence[int],
    temperatures: Sequence[float],
    u: Sequence[float],
    forced: Sequence[int],
) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities of the rows at `lines`, each with its temperature (0: greedy), its uniform
    number in [0, 1) and the token it has to take (-1: none). What has logit -inf is never drawn.
    """
    B = len(lines)
    tokens, logprobs = torch.empty(B, dtype=torch.long), logits_RV.new_empty(B)
    whole = (torch.tensor(list(lines)), torch.tensor(temperatures, dtype=torch.float64))
    drawn = (torch.tensor(u, dtype=torch.float64), torch.tensor(forced))
    _native("draw", logprobs, tokens, logits_RV.contiguous(), *whole, *drawn, B, logits_RV.shape[1])
    return tokens.tolist(), logprobs.tolist()
