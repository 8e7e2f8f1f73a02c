"""One update: micro-batches in, gradients added up, one optimiser step. The loss knows no algorithm and no domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from overland.rl.batch import Bundle, MicroBatch, collate, forward_of, split
from overland.rl.loss import LossFigures, likelihood_loss, policy_loss, token_logprobs
from overland.rl.section import RLSection
from overland.train.optim import adamw, clip_gradients


@dataclass
class UpdateFigures:
    """What one pass over a set of bundles did."""

    loss: float = 0.0
    figures: LossFigures = field(default_factory=LossFigures)
    positions: int = 0


def batch_loss(
    model: nn.Module, batch: MicroBatch, section: RLSection, reference: nn.Module | None = None
) -> tuple[Tensor, LossFigures]:
    """The micro-batch's share of the batch's loss, ready for backward."""
    logits_NV = forward_of(model)(model, batch)
    logp_N, entropy_N = token_logprobs(logits_NV, batch.target_N, section.temperature)
    if section.loss == "likelihood":
        return likelihood_loss(logp_N, batch.sampler_logp_N, batch.advantage_N, batch.weight_N, entropy_N=entropy_N)
    reference_logp_N = None
    if reference is not None:
        with torch.no_grad():
            reference_NV = forward_of(reference)(reference, batch)
            reference_logp_N = token_logprobs(reference_NV, batch.target_N, section.temperature)[0]
    return policy_loss(
        logp_N,
        batch.sampler_logp_N,
        batch.advantage_N,
        batch.weight_N,
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        reference_logp_N=reference_logp_N,
        reference_kl=section.reference_kl,
        entropy_N=entropy_N,
    )


def accumulate(
    model: nn.Module, bundles: Sequence[Bundle], section: RLSection, reference: nn.Module | None = None
) -> UpdateFigures:
    """Add the gradients of all bundles to the parameters' `.grad`; any `micro_batch_tokens` gives the same sum."""
    result = UpdateFigures()
    for part in split(bundles, section.micro_batch_tokens):
        batch = collate(part, device=next(model.parameters()).device)
        loss, figures = batch_loss(model, batch, section, reference)
        loss.backward()
        result.loss += float(loss.detach())
        result.figures.add(figures)
        result.positions += batch.tokens
    return result


def apply_step(model: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Clip, step, clear. Returns the norm before clipping; a gradient that is not finite is not applied."""
    norm = clip_gradients(model.parameters(), max_grad_norm)
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def make_optimizer(model: nn.Module, section: RLSection) -> torch.optim.AdamW:
    """AdamW over the parameters that want a gradient (the routers' selection biases are buffers and stay as they are,
    so that trainer and sampler choose the same experts)."""
    return adamw(model, section.lr, weight_decay=section.weight_decay, betas=section.betas)


def learning_rate(section: RLSection, step: int) -> float:
    """Linear warm-up, then a linear way to `final_lr` x lr."""
    warm = min(1.0, (step + 1) / max(1, section.warmup_steps))
    done = step / max(1, section.steps - 1)
    return section.lr * warm * (1.0 + (section.final_lr - 1.0) * min(1.0, done))
