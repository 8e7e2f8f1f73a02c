"""The face of an algorithm: rewards in, one advantage a sample or a token out, and a loss per trained token.

An algorithm is a section of the recipe, so that every domain can have its own: `[rl.algorithm]` for all,
`[rl.domains.NAME.algorithm]` for one. The trainer knows none of them.

Shapes: N trained tokens of a micro-batch, flat (padding, prompts, tool answers and forced tokens are already gone);
R rows (samples), each of them whole.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from overland.config import Section
from overland.rl.samples import Group

Normalise = Literal["token", "sequence", "constant"]
Advantage = float | tuple[float, ...]
"""One number for the whole sample, or one for each of its trained tokens."""


@dataclass(frozen=True)
class Scored:
    """What models said about samples before the update: one number a trained token, by sample id."""

    logp: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The trainer's own log-probabilities: the ratio's denominator where trainer and sampler are told apart."""
    value: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The critic's value of the state before each token."""
    teacher: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """A teacher's log-probabilities."""


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of one micro-batch. `logp_N` alone carries a gradient."""

    logp_N: Tensor
    old_logp_N: Tensor
    """Of the policy that the update starts from (the sampler's, where nothing else was scored)."""
    advantage_N: Tensor
    row_N: Tensor
    """Index of each token's sample."""

    @property
    def log_ratio_N(self) -> Tensor:
        return self.logp_N - self.old_logp_N

    def row_mean(self, x_N: Tensor) -> Tensor:
        """[N]: the mean of each token's sample."""
        rows = int(self.row_N.max()) + 1 if len(self.row_N) else 0
        sums_R = x_N.new_zeros(rows).index_add(0, self.row_N, x_N)
        return (sums_R / torch.bincount(self.row_N, minlength=rows).clamp(min=1))[self.row_N]


class Algorithm(Section):
    """Subclasses say how rewards become advantages (`batch_advantages`) and what a token costs (`per_token`)."""

    normalise: Normalise = "token"
    """A token's share of the loss: of all trained tokens (DAPO), of its sample (GRPO), or constant (Dr. GRPO)."""

    @abc.abstractmethod
    def batch_advantages(self, groups: Sequence[Group], scored: Scored) -> Mapping[str, Advantage]:
        """Advantages of a whole batch by sample id. A sample that is left out is not trained on."""

    @abc.abstractmethod
    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """(loss [N] before weights, whether each token was clipped [N])."""

    @property
    def wants_variance(self) -> bool:
        """Whether a group in which all samples got the same reward teaches nothing."""
        return False


class GroupAlgorithm(Algorithm):
    """An algorithm that compares the samples of one task with each other."""

    @abc.abstractmethod
    def advantages(self, group: Group) -> dict[str, float]:
        """Advantage by sample id. An empty answer means that the whole group gives no gradient (the trainer counts
        such groups)."""

    def batch_advantages(self, groups: Sequence[Group], scored: Scored) -> Mapping[str, Advantage]:
        """Each group by itself."""
        return {id: advantage for group in groups for id, advantage in self.advantages(group).items()}


def clipped(tokens: Tokens, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO's surrogate -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) (Schulman et al. 2017, eq. 7)."""
    ratio_N = tokens.log_ratio_N.exp()
    free_N = ratio_N * tokens.advantage_N
    held_N = ratio_N.clamp(1.0 - low, 1.0 + high) * tokens.advantage_N
    return -torch.minimum(free_N, held_N), held_N < free_N


def likelihood(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """-A * log p: plain policy gradient on samples of the current policy; nothing is clipped."""
    loss_N = -(tokens.advantage_N * tokens.logp_N)
    return loss_N, torch.zeros_like(loss_N, dtype=torch.bool)


def whitened(advantages: Mapping[str, Advantage], tokens: Mapping[str, int], eps: float = 1e-8) -> dict[str, Advantage]:
    """Mean 0 and variance 1 over all trained tokens (unbiased variance, as in verl); `tokens` by sample id."""
    flat = torch.tensor(
        [value for id, a in advantages.items() for value in (a if isinstance(a, tuple) else (a,) * tokens[id])],
        dtype=torch.float64,
    )
    if len(flat) < 2:
        return dict.fromkeys(advantages, 0.0)
    scaled = ((flat - flat.mean()) * torch.rsqrt(flat.var() + eps)).tolist()
    result: dict[str, Advantage] = {}
    at = 0
    for id, a in advantages.items():
        part = tuple(scaled[at : at + tokens[id]])
        at += tokens[id]
        result[id] = part if isinstance(a, tuple) or not part else part[0]
    return result
