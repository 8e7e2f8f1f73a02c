"""Multi-teacher on-policy distillation: the student samples, a teacher of the domain and effort pays for every token.

The reward of a token is clip(log p_teacher - log p_student, -bound, bound); without the bound its expected gradient is
that of the reverse KL (Agarwal et al. 2024, GKD; Kimi K3's third stage).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from overland.rl.algorithms.base import Advantage, Algorithm, Scored, Tokens, clipped
from overland.rl.samples import Group


class Distil(Algorithm):
    """Every sample teaches, whatever its reward: what counts is what the teacher would have written."""

    type: Literal["distil"] = "distil"
    """The teacher's log-probability minus the student's is each token's advantage."""
    teachers: dict[str, str] = Field(default_factory=dict)
    """Model folders by "domain/effort", "domain", or "*" for the rest; the most exact name is taken."""
    bound: float = Field(default=5.0, gt=0)
    """Largest reward of a token, in nats, up and down."""
    clip_low: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The importance ratio is clipped from above at 1 + clip_high."""

    def batch_advantages(self, groups: Sequence[Group], scored: Scored) -> Mapping[str, Advantage]:
        found: dict[str, Advantage] = {}
        for sample in (s for g in groups for s in g.judged if s.trained_tokens):
            own = [logp for logp, trained in zip(sample.logprobs, sample.trained, strict=True) if trained]
            found[sample.id] = tuple(
                max(-self.bound, min(self.bound, theirs - ours))
                for theirs, ours in zip(scored.teacher[sample.id], own, strict=True)
            )
        return found

    def per_token(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return clipped(tokens, self.clip_low, self.clip_high)
