"""From logits to one token a row, with the log-probability of what was really drawn.

Shapes: L lanes (histories that are computed once), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overland import kernels
from overland.engine.request import Generation


class Drawn(NamedTuple):
    """A token, its log-probability in the distribution it was drawn from, whether it was forced, and alternatives."""

    token: int
    logprob: float
    forced: bool
    top: tuple[tuple[int, float], ...] = ()


def sample(logits_LV: Tensor, rows: Sequence[Generation], lanes: Sequence[int] | None = None) -> list[Drawn]:
    """One token a row, from the logits of lane `lanes[i]` (None: its own). Each row uses its own random stream and
    sampling settings."""
    lanes = range(len(rows)) if lanes is None else lanes
    if not all(row.sampling.whole and row.constraint is None for row in rows) or not kernels.draws(logits_LV):
        return sample_reference(logits_LV, rows, lanes)
    temperatures = [row.sampling.temperature for row in rows]
    u = [row.draw() if heat else 0.0 for row, heat in zip(rows, temperatures, strict=True)]
    forced = [-1 if want is None else want for want in (row.next_forced() for row in rows)]
    tokens, logprobs = kernels.draw(logits_LV, lanes, temperatures, u, forced)
    return [Drawn(t, lp, want >= 0) for t, lp, want in zip(tokens, logprobs, forced, strict=True)]


def sample_reference(logits_LV: Tensor, rows: Sequence[Generation], lanes: Sequence[int]) -> list[Drawn]:
    """The same with every setting, in torch; a distribution that several rows draw from is computed once."""
    distinct: dict[object, int] = {}
    shape_of = [distinct.setdefault((lane, _shape(row)), len(distinct)) for row, lane in zip(rows, lanes, strict=True)]
    first = [shape_of.index(i) for i in range(len(distinct))]
    shapes, index = [rows[i] for i in first], torch.tensor(shape_of)
    logits = _adjust(logits_LV[[lanes[i] for i in first]].to(torch.float32), shapes)
    temperature = torch.tensor([row.sampling.temperature for row in shapes])
    greedy = temperature == 0
    logits = logits / torch.where(greedy, 1.0, temperature)[:, None]
    open_logits, logits = logits, _constrain(logits, shapes)
    cut = any(row.sampling.top_k or row.sampling.top_p < 1 or row.sampling.min_p for row in shapes)
    truncated = cut or logits is not open_logits
    logprobs = (_truncate(logits, shapes) if cut else logits).log_softmax(-1)
    u = torch.tensor([0.0 if row.sampling.temperature == 0 else row.draw() for row in rows], dtype=torch.float64)
    cdf = logprobs.to(torch.float64).exp().cumsum(-1)[index]
    drawn = torch.searchsorted(cdf, (u * cdf[:, -1])[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy[index], logits.argmax(-1)[index], drawn).tolist()
    forced = [row.next_forced() for row in rows]
    chosen = torch.tensor([token if want is None else want for token, want in zip(tokens, forced, strict=True)])
    picked = logprobs[index, chosen]
    top = _alternatives(logprobs, rows, shape_of)
    if truncated and any(want is not None for want in forced):  # truncation may leave a forced token no probability
        by_force = torch.tensor([want is not None for want in forced])
        logprobs = open_logits.log_softmax(-1)
        picked = torch.where(by_force, logprobs[index, chosen], picked)
        of_forced = _alternatives(logprobs, rows, shape_of)
        top = [own if want is None else other for own, other, want in zip(top, of_forced, forced, strict=True)]
    return [
        Drawn(token, lp, want is not None, best)
        for token, lp, want, best in zip(chosen.tolist(), picked.tolist(), forced, top, strict=True)
    ]


def _shape(row: Generation) -> object:
    """What gives a row's distribution its shape: rows of one lane that agree in it draw from the same."""
    s = row.sampling
    if s.logit_bias or s.penalised or row.constraint is not None:
        return id(row)
    return s.temperature, s.top_p, s.top_k, s.min_p


def _adjust(logits: Tensor, rows: Sequence[Generation]) -> Tensor:
    """Bias and penalties; the tensor itself where no row has any."""
    if not any(row.sampling.logit_bias or row.sampling.penalised for row in rows):
        return logits
    logits = logits.clone()
    for line, row in zip(logits, rows, strict=True):
        s = row.sampling
        if s.repetition_penalty != 1.0:
            said = torch.tensor(list({*row.prompt_words, *row.counts}))
            old, penalty = line[said], s.repetition_penalty
            line[said] = torch.where(old > 0, old / penalty, old * penalty)
        if row.counts and (s.presence_penalty or s.frequency_penalty):
            said = torch.tensor(list(row.counts))
            times = torch.tensor(list(row.counts.values()), dtype=torch.float32)
            line[said] -= s.presence_penalty + s.frequency_penalty * times
        if s.logit_bias:
            ids, biases = zip(*s.logit_bias, strict=True)
            line.index_add_(0, torch.tensor(ids), torch.tensor(biases))
    return logits


def _constrain(logits: Tensor, rows: Sequence[Generation]) -> Tensor:
    """Mask what a row's constraint forbids; the tensor itself where no row has one."""
    masks = [row.constraint.allowed(logits.shape[-1]) if row.constraint is not None else None for row in rows]
    if all(mask is None for mask in masks):
        return logits
    everything = torch.ones(logits.shape[-1], dtype=torch.bool)
    return logits.masked_fill(~torch.stack([everything if m is None else m for m in masks]), float("-inf"))


def _truncate(logits: Tensor, rows: Sequence[Generation]) -> Tensor:
    """Mask what top-k, top-p and min-p leave out; the most likely token always stays."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ranked = logits.gather(1, order)
    rank = torch.arange(logits.shape[-1])[None]
    top_k = torch.tensor([row.sampling.top_k or logits.shape[-1] for row in rows])[:, None]
    ranked = ranked.masked_fill(rank >= top_k, float("-inf"))
    top_p = torch.tensor([row.sampling.top_p for row in rows])[:, None]
    probs = ranked.softmax(-1)
    mass_before = probs.cumsum(-1) - probs
    outside = (mass_before >= top_p) & (top_p < 1) & (rank > 0)  # rounding takes the mass past 1 where all is asked for
    ranked = ranked.masked_fill(outside, float("-inf"))
    if any(row.sampling.min_p for row in rows):
        min_p = torch.tensor([row.sampling.min_p for row in rows])[:, None]
        ranked = ranked.masked_fill((probs < min_p * probs[:, :1]) & (rank > 0), float("-inf"))
    return torch.empty_like(logits).scatter(1, order, ranked)


def _alternatives(
    logprobs: Tensor, rows: Sequence[Generation], shape_of: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    """The most likely tokens of each row, best first, as many as it asked for (fewer where a cut left fewer)."""
    most = min(max(row.sampling.top_logprobs for row in rows), logprobs.shape[-1])
    if most == 0:
        return [()] * len(rows)
    best = logprobs.topk(most, dim=-1)
    ids, values = best.indices.tolist(), best.values.tolist()
    found = []
    for row, i in zip(rows, shape_of, strict=True):
        pairs = zip(ids[i][: row.sampling.top_logprobs], values[i], strict=False)
        found.append(tuple((token, lp) for token, lp in pairs if lp > float("-inf")))
    return found
