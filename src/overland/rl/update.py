"""One update: micro-batches in, gradients added up, one optimiser step. The loss knows no algorithm and no domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from overland.rl.algorithms import PPO, Tokens
from overland.rl.batch import Bundle, MicroBatch, by_algorithm, chunks, collate, shares, split
from overland.rl.critic import Critic
from overland.rl.loss import LossFigures, part_figures, policy_loss, token_logprobs
from overland.rl.section import RLSection
from overland.rl.shared import Forward, forward_for
from overland.train.optim import adamw, clip_gradients
from overland.train.ranks import Ranks


@dataclass
class UpdateFigures:
    """What one pass over a set of bundles did."""

    loss: float = 0.0
    figures: LossFigures = field(default_factory=LossFigures)


def accumulate(
    model: nn.Module,
    bundles: Sequence[Bundle],
    section: RLSection,
    reference: nn.Module | None = None,
    critic: Critic | None = None,
) -> UpdateFigures:
    """Leave the sum of all bundles' gradients in the parameters' `.grad`, and return what the pass saw.

    Every rank computes its share; any number of ranks and any `micro_batch_tokens` give the same sum.
    """
    ranks = Ranks.current()
    result = UpdateFigures()
    device = next(model.parameters()).device
    parts = by_algorithm(shares(bundles, ranks.world)[ranks.rank])
    for chunk in (chunk for part in parts for chunk in chunks(part, section.micro_batch_tokens)):
        forward = forward_for(model, chunk, device)
        with torch.no_grad():
            anchor = forward_for(reference, chunk, device) if reference is not None else None
        for rows in split(chunk, section.micro_batch_tokens):
            batch = collate(chunk, rows, device=device)
            loss, figures = batch_loss(forward, batch, section, anchor, critic)
            loss.backward()
            result.loss += float(loss.detach())
            result.figures.add(figures)
        forward.finish()
    ranks.sum_gradients([*model.parameters(), *(critic.head.parameters() if critic is not None else ())])
    total = UpdateFigures()
    for part in ranks.gather(result):
        total.loss += part.loss
        total.figures.add(part.figures)
    return total


def batch_loss(
    forward: Forward,
    batch: MicroBatch,
    section: RLSection,
    anchor: Forward | None = None,
    critic: Critic | None = None,
) -> tuple[Tensor, LossFigures]:
    """The micro-batch's share of the batch's loss, ready for backward. `anchor` is the reference policy's forward."""
    logp_N, entropy_N = token_logprobs(forward.logits(batch), batch.target_N, section.temperature)
    old_logp_N = batch.old_logp_N
    if old_logp_N is None:
        corrected = section.correction.level != "none"
        old_logp_N = logp_N.detach() if corrected else batch.sampler_logp_N
    value_N = None
    if critic is not None and isinstance(batch.algorithm, PPO):
        value_N = critic.values(*forward.index(batch))
    reference_logp_N = None
    if anchor is not None:
        with torch.no_grad():
            reference_logp_N = token_logprobs(anchor.logits(batch), batch.target_N, section.temperature)[0]
    loss, figures = policy_loss(
        batch.algorithm,
        Tokens(logp_N, old_logp_N, batch.advantage_N, batch.row_N),
        batch.sampler_logp_N,
        batch.weight_N,
        correction=section.correction,
        reference_logp_N=reference_logp_N,
        reference_kl=section.reference_kl,
        entropy_N=entropy_N,
        copies_N=batch.copies_N,
    )
    part_figures(figures, batch.labels, batch.row_N, logp_N - batch.sampler_logp_N, entropy_N, batch.copies_N)
    if value_N is not None and isinstance(batch.algorithm, PPO):
        assert batch.value_N is not None
        assert batch.return_N is not None
        value_loss = (batch.algorithm.value_loss(value_N, batch.value_N, batch.return_N) * batch.weight_N).sum()
        loss = loss + batch.algorithm.value_weight * value_loss
        figures.value_loss = float(value_loss.detach())
        figures.value_error = float(((batch.value_N - batch.return_N) ** 2 * batch.copies_N).sum())
    return loss, figures


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
    return adamw(model, section.lr, weight_decay=section.weight_decay, betas=section.betas, eps=section.eps)


def learning_rate(section: RLSection, step: int) -> float:
    """Linear warm-up, then a linear way to `final_lr` x lr."""
    warm = min(1.0, (step + 1) / max(1, section.warmup_steps))
    done = step / max(1, section.steps - 1)
    return section.lr * warm * (1.0 + (section.final_lr - 1.0) * min(1.0, done))
