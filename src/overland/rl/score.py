"""What models say about a batch's samples before anything is updated: log-probabilities and values, by sample.

Used for the ratio's denominator where trainer and sampler are told apart, for teachers, and for a critic's old values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from overland.rl.batch import Bundle, Row, chunks, collate, split
from overland.rl.loss import token_logprobs
from overland.rl.shared import forward_for
from overland.train.ranks import Ranks

if TYPE_CHECKING:
    from overland.rl.critic import Critic
    from overland.rl.samples import Group

Numbers = dict[str, tuple[float, ...]]


@dataclass
class Scores:
    """One number a trained token, by sample id."""

    logp: Numbers = field(default_factory=dict)
    value: Numbers = field(default_factory=dict)


def score(
    model: nn.Module,
    groups: Sequence[Group],
    max_tokens: int,
    temperature: float = 1.0,
    critic: Critic | None = None,
    only: Mapping[str, object] | None = None,
) -> Scores:
    """Run `model` over every judged sample (those whose id is in `only`, where given), without gradient.

    Every rank scores its share and gets all.
    """
    ranks, found = Ranks.current(), Scores()
    bundles = [b for group in groups for b in _bundles(group, only)]
    device = next(model.parameters()).device
    with torch.no_grad():
        for chunk in chunks(ranks.share(bundles), max_tokens):
            forward = forward_for(model, chunk, device)
            for rows in split(chunk, max_tokens):
                batch = collate(chunk, rows, device=device)
                logp_N, _ = token_logprobs(forward.logits(batch), batch.target_N, temperature)
                _deal(found.logp, batch.keys, batch.row_N, logp_N)
                if critic is not None:
                    _deal(found.value, batch.keys, batch.row_N, critic.values(*forward.index(batch)))
    total = Scores()
    for part in ranks.gather(found):
        total.logp |= part.logp
        total.value |= part.value
    return total


def _bundles(group: Group, only: Mapping[str, object] | None) -> list[Bundle]:
    by_prompt: dict[tuple[int, ...], list[Row]] = {}
    for sample in group.judged:
        if sample.trained_tokens and (only is None or sample.id in only):
            by_prompt.setdefault(sample.ids[: sample.prompt_length], []).append(Row(sample, 0.0, 0.0))
    return [Bundle(prompt, tuple(rows)) for prompt, rows in by_prompt.items()]


def _deal(into: Numbers, keys: Sequence[str], row_N: torch.Tensor, x_N: torch.Tensor) -> None:
    parts: list[list[float]] = [[] for _ in keys]
    for row, x in zip(row_N.tolist(), x_N.tolist(), strict=True):
        parts[row].append(x)
    into.update(zip(keys, map(tuple, parts), strict=True))
