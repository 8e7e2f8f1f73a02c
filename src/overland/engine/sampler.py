"""From logits to one token a row, with the log-probability of what was really drawn.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland.engine.request import Generation


def sample(logits_BV: Tensor, rows: list[Generation]) -> list[tuple[int, float, bool]]:
    """One (token, log-probability, forced) a row. Each row uses its own random stream and sampling settings."""
    logits = logits_BV.to(torch.float32)
    temperature = torch.tensor([row.sampling.temperature for row in rows])
    greedy = temperature == 0
    logits = logits / torch.where(greedy, 1.0, temperature)[:, None]
    truncated = any(row.sampling.top_k or row.sampling.top_p < 1 for row in rows)
    logprobs = (_truncate(logits, rows) if truncated else logits).log_softmax(-1)
    u = torch.tensor([0.0 if row.sampling.temperature == 0 else row.draw() for row in rows], dtype=torch.float64)
    cdf = logprobs.to(torch.float64).exp().cumsum(-1)
    drawn = torch.searchsorted(cdf, (u * cdf[:, -1])[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logits.argmax(-1), drawn).tolist()
    forced = [row.next_forced() for row in rows]
    chosen = [token if want is None else want for token, want in zip(tokens, forced, strict=True)]
    if truncated and any(want is not None for want in forced):  # truncation may leave a forced token no probability
        by_force = torch.tensor([want is not None for want in forced])[:, None]
        logprobs = torch.where(by_force, logits.log_softmax(-1), logprobs)
    picked = logprobs.gather(1, torch.tensor(chosen)[:, None])[:, 0].tolist()
    return [(token, lp, want is not None) for token, lp, want in zip(chosen, picked, forced, strict=True)]


def _truncate(logits: Tensor, rows: list[Generation]) -> Tensor:
    """Mask what top-k and top-p leave out; the most likely token always stays."""
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
    return torch.empty_like(logits).scatter(1, order, ranked)
