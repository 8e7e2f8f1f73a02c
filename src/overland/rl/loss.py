"""From an algorithm's loss per token to a micro-batch's share of the batch's loss, and the figures beside it.

Every denominator is fixed before the first backward pass (`sample_weights`), so the shares are added, never averaged.

Shapes: N trained tokens of a micro-batch, flat (padding, prompts, tool answers and forced tokens are already gone).
Sources: k3 estimator of the KL (Schulman 2020, "Approximating KL divergence"); normalisations: `token` DAPO §3.3,
`sequence` GRPO eq. 3, `constant` Dr. GRPO (Liu et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from overland.rl.algorithms.base import Algorithm, Normalise, Tokens
from overland.rl.correction import CorrectionSection, importance_weights


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


SUMS = (
    "tokens",
    "mismatch_kl",
    "entropy",
    "clipped",
    "ratio",
    "reference_kl",
    "corrected",
    "value_loss",
    "value_error",
)


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
    corrected: float = 0.0
    value_loss: float = 0.0
    value_error: float = 0.0
    parts: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Tokens, mismatch KL and entropy by domain and by effort."""

    def add(self, other: LossFigures) -> None:
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.log_ratio_abs_max = max(self.log_ratio_abs_max, other.log_ratio_abs_max)
        for name, (tokens, mismatch, entropy) in other.parts.items():
            old = self.parts.get(name, (0.0, 0.0, 0.0))
            self.parts[name] = (old[0] + tokens, old[1] + mismatch, old[2] + entropy)

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
            "corrected_share": self.corrected / n,
        }

    def by_part(self) -> dict[str, float]:
        """`mismatch_kl/NAME` and `entropy/NAME` for every domain and effort that has trained tokens."""
        found = {}
        for name, (tokens, mismatch, entropy) in sorted(self.parts.items()):
            found[f"mismatch_kl/{name}"] = mismatch / max(1.0, tokens)
            found[f"entropy/{name}"] = entropy / max(1.0, tokens)
        return found

    def critic(self) -> dict[str, float]:
        """The critic's loss and root mean squared error; empty where none was trained."""
        n = max(1.0, self.tokens)
        return {"value_loss": self.value_loss, "value_rmse": (self.value_error / n) ** 0.5} if self.value_error else {}


def policy_loss(
    algorithm: Algorithm,
    tokens: Tokens,
    sampler_logp_N: Tensor,
    weight_N: Tensor,
    *,
    correction: CorrectionSection | None = None,
    reference_logp_N: Tensor | None = None,
    reference_kl: float = 0.0,
    entropy_N: Tensor | None = None,
    copies_N: Tensor | None = None,
) -> tuple[Tensor, LossFigures]:
    """sum(weight * (importance weight * the algorithm's loss + reference_kl * k3)), a micro-batch's share.

    `tokens.logp_N` carries the gradient; `sampler_logp_N` is what the sampler stored, and all figures compare with it.
    `copies_N` says how many sampled tokens each stands for, in the figures (None: one).
    """
    per_token_N, clipped_N = algorithm.per_token(tokens)
    copies_N = torch.ones_like(sampler_logp_N) if copies_N is None else copies_N
    with torch.no_grad():
        log_ratio_N = tokens.logp_N - sampler_logp_N
        figures = _figures(log_ratio_N, log_ratio_N.exp(), entropy_N, copies_N)
        figures.clipped = float((clipped_N * copies_N).sum())
    if correction is not None and correction.level != "none":
        importance_N, changed_N = importance_weights(tokens.old_logp_N, sampler_logp_N, tokens.row_N, correction)
        per_token_N = per_token_N * importance_N
        figures.corrected = float((changed_N * copies_N).sum())
    if reference_logp_N is not None:
        delta_N = reference_logp_N - tokens.logp_N
        k3_N = delta_N.exp() - delta_N - 1.0
        per_token_N = per_token_N + reference_kl * k3_N
        figures.reference_kl = float((k3_N.detach() * copies_N).sum())
    return (per_token_N * weight_N).sum(), figures


def part_figures(
    figures: LossFigures,
    labels: Sequence[tuple[str, str]],
    row_N: Tensor,
    log_ratio_N: Tensor,
    entropy_N: Tensor,
    copies_N: Tensor,
) -> None:
    """Add what each domain and each effort contributed; `labels` names both for every row."""
    x = log_ratio_N.detach().double()
    sums = torch.zeros(len(labels), 3, dtype=torch.float64, device=x.device)
    of_N3 = torch.stack([torch.ones_like(x), torch.expm1(x) - x, entropy_N.double()], dim=1)
    sums.index_add_(0, row_N, of_N3 * copies_N.double()[:, None])
    for names, (tokens, mismatch, entropy) in zip(labels, sums.tolist(), strict=True):
        figures.add(LossFigures(parts={name: (tokens, mismatch, entropy) for name in names if name}))


def _figures(log_ratio_N: Tensor, ratio_N: Tensor, entropy_N: Tensor | None, copies_N: Tensor) -> LossFigures:
    if log_ratio_N.numel() == 0:
        return LossFigures()
    # expm1(x) - x is k3 without the cancellation that exp(x) - x - 1 suffers near 0, where a healthy run lives
    return LossFigures(
        tokens=float(copies_N.sum()),
        mismatch_kl=float(((torch.expm1(log_ratio_N.double()) - log_ratio_N.double()) * copies_N).sum()),
        entropy=0.0 if entropy_N is None else float((entropy_N * copies_N).sum()),
        ratio=float((ratio_N * copies_N).sum()),
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
