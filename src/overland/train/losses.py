"""Losses whose value does not depend on how a batch was cut.

The denominator is the caller's, and global: the weight of the whole step, over all micro-batches and ranks. Averaging
inside each piece and then averaging the pieces would weigh a token by the size of the piece it happened to fall into.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """log p(target) at every position [B, T], natural logarithm, fp32 at least.

    `logits` [B, T, V]; `targets` [B, T] int64 are the tokens that each position predicts (already shifted).
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        wide = wide / temperature
    return wide.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor, denominator: float | Tensor) -> Tensor:
    """sum(weights * -log p(target)) / denominator, a scalar: pieces of a step add up to the whole step's loss.

    `logits` [B, T, V], `targets` and `weights` [B, T]; weight 0 leaves a position out (its target may be anything
    within the vocabulary). `denominator` is the sum of weights over the whole step.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = F.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)
    return (nll * weights.to(nll.dtype)).sum() / denominator
