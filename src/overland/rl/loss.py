"""The clipped token-level policy-gradient loss, with every denominator fixed before the first backward pass.

Shapes: N trained tokens of a micro-batch, flat (padding, prompts, tool answers and forced tokens are already gone).
Sources: PPO's clip (Schulman et al. 2017, eq. 7) with DAPO's separate upper bound (Yu et al. 2025, §3.1); k3 estimator
of the KL (Schulman 2020, "Approximating KL divergence"); normalisations: `token` DAPO §3.3, `sequence` GRPO eq. 3,
`constant` Dr. GRPO (Liu et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Normalise = Literal["token", "sequence", "constant"]


def sample_weights(trained_tokens: Sequence[int], normalise: Normalise = "token", constant: int = 0) -> list[float]:
    """The weight of every token of each sample, so that the loss is a plain weighted sum over all tokens.

    Because the weights are computed over the whole batch, any split into micro-batches gives the same sum:
    `token` 1 / (trained tokens of the batch); `sequence` 1 / (samples x tokens of the sample);
    `constant` 1 / (samples x constant), which gives long samples no discount.
    """
    counts = [max(1, n) for n in trained_tokens]
    if normalise == "token":
        return [1.0 / max(1, sum(trained_tokens))] * len(counts)
    if normalise == "sequence":
        return [1.0 / (len(counts) * n) for n in counts]
    if constant < 1:
        raise ValueError("normalise = constant needs the constant: the longest answer allowed, in tokens")
    return [1.0 / (len(counts) * constant)] * len(counts)


@dataclass
class LossFigures:
    """Sums over trained tokens, so that micro-batches can be added; `means()` divides by the token count.

    The ratio is the trainer's probability over the sampler's, logged before any clip: clipped values hide a mismatch.
    """

    tokens: float = 0.0
    mismatch_kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    log_ratio_abs_max: float = 0.0
    reference_kl: float = 0.0

    def add(self, other: LossFigures) -> None:
        for name in ("tokens", "mismatch_kl", "entropy", "clipped", "ratio", "reference_kl"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.log_ratio_abs_max = max(self.log_ratio_abs_max, other.log_ratio_abs_max)

    def means(self) -> dict[str, float]:
        n = max(1.0, self.tokens)
        return {
            "mismatch_kl": self.mismatch_kl / n,
            "entropy": self.entropy / n,
            "clipped_share": self.clipped / n,
            "ratio_mean": self.ratio / n,
            "ratio_max": self.ratio_max,
            "log_ratio_abs_max": self.log_ratio_abs_max,
            "reference_kl": self.reference_kl / n,
        }


def policy_loss(
    logp_N: Tensor,
    sampler_logp_N: Tensor,
    advantage_N: Tensor,
    weight_N: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    reference_logp_N: Tensor | None = None,
    reference_kl: float = 0.0,
    entropy_N: Tensor | None = None,
) -> tuple[Tensor, LossFigures]:
    """-sum(weight * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)) + reference_kl * sum(weight * k3).

    `logp_N` carries the gradient; `sampler_logp_N` is what the sampler stored. The result is this micro-batch's share
    of the batch's loss: add the shares, do not average them.
    """
    log_ratio_N = logp_N - sampler_logp_N
    ratio_N = log_ratio_N.exp()
    unclipped_N = ratio_N * advantage_N
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage_N
    per_token_N = -torch.minimum(unclipped_N, clipped_N)
    k3_N = None
    if reference_logp_N is not None:
        delta_N = reference_logp_N - logp_N
        k3_N = delta_N.exp() - delta_N - 1.0
        per_token_N = per_token_N + reference_kl * k3_N
    with torch.no_grad():
        figures = _figures(log_ratio_N, ratio_N, entropy_N)
        figures.clipped = float((clipped_N < unclipped_N).sum())
        if k3_N is not None:
            figures.reference_kl = float(k3_N.sum())
    return (per_token_N * weight_N).sum(), figures


def likelihood_loss(
    logp_N: Tensor,
    sampler_logp_N: Tensor,
    advantage_N: Tensor,
    weight_N: Tensor,
    *,
    entropy_N: Tensor | None = None,
) -> tuple[Tensor, LossFigures]:
    """-sum(weight * A * logp): plain maximum likelihood on the samples that have an advantage (rejection sampling)."""
    with torch.no_grad():
        log_ratio_N = logp_N - sampler_logp_N
        figures = _figures(log_ratio_N, log_ratio_N.exp(), entropy_N)
    return -(weight_N * advantage_N * logp_N).sum(), figures


def _figures(log_ratio_N: Tensor, ratio_N: Tensor, entropy_N: Tensor | None) -> LossFigures:
    if log_ratio_N.numel() == 0:
        return LossFigures()
    # expm1(x) - x is k3 without the cancellation that exp(x) - x - 1 suffers near 0, where a healthy run lives
    return LossFigures(
        tokens=float(log_ratio_N.numel()),
        mismatch_kl=float((torch.expm1(log_ratio_N.double()) - log_ratio_N.double()).sum()),
        entropy=0.0 if entropy_N is None else float(entropy_N.sum()),
        ratio=float(ratio_N.sum()),
        ratio_max=float(ratio_N.max()),
        log_ratio_abs_max=float(log_ratio_N.abs().max()),
    )


def token_logprobs(logits_NV: Tensor, targets_N: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and the entropy of its distribution (no gradient), in nats, fp32 at least."""
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    logp_NV = torch.log_softmax(logits_NV.to(wide) / temperature, dim=-1)
    with torch.no_grad():
        entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    return logp_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropy_N
