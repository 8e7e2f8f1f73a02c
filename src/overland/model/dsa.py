"""DeepSeek sparse attention: MLA over the tokens that a lightning indexer keeps for each query.

    y(t) = MLA over s in K_t,   K_t = top-k of I(t, .)

The indexer learns to imitate the attention, p = the heads' probabilities summed, normalised and detached:

    dense warm-up   attention over everything,  L = KL( p || softmax I )
    sparse stage    attention over K_t,         L = KL( p on K_t || softmax of I on K_t )

With no more than k tokens in sight this is MLA exactly.
Shapes: B batch, T new tokens, S tokens seen, D model, H heads, V value dim, L KV latent, R rope dim, k kept keys.
Source: DeepSeek-V3.2 report §2; reference/architecture.md §5 and §6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overland.model.cache import DSACache, LayerCache, append
from overland.model.config import DecoderConfig
from overland.model.context import Context, IndexerStage, visible
from overland.model.indexer import Indexer, index_scores, select, selected_ids, selected_mask
from overland.model.mla import MLA

SCORE_ELEMENTS = 1 << 22  # of the indexer's dots at a time: queries are taken in chunks, so that memory stays flat


@dataclass
class Indexing:
    """What a sparse layer leaves for losses and meters.

    `kl` [B, T]: every query's loss (0 on padding); its gradient reaches the indexer alone. `mass` [B, T]: the share of
    the dense attention on the kept keys, in the dense stage. `selected` [B, T, k]: the kept keys, padded with -1.
    """

    kl: Tensor | None = None
    mass: Tensor | None = None
    selected: Tensor | None = None


class DSA(MLA):
    """One sparse MLA mixer. `forward` returns [B, T, D] and an Indexing; a cache that was given is appended to."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.indexer = Indexer(config)

    def forward(  # type: ignore[override]
        self,
        x_BTD: Tensor,
        context: Context | None = None,
        cache: LayerCache | None = None,
        replay_BTk: Tensor | None = None,
    ) -> tuple[Tensor, Indexing]:
        context = context or Context()
        B, T, _ = x_BTD.shape
        r_BTQ = self.query_latent(x_BTD)
        q_BTHx, e_BSx = self.queries(r_BTQ, context), self.latents(x_BTD, context)
        k_BSI = self.indexer.keys(x_BTD, context)
        if isinstance(cache, DSACache) and context.lengths_B is not None:
            S = int(context.lengths_B.max()) + T
            cache.latents = append(cache.latents, e_BSx, context.lengths_B)
            cache.keys = append(cache.keys, k_BSI, context.lengths_B)
            e_BSx, k_BSI = cache.latents[:, :S], cache.keys[:, :S]

        S = e_BSx.shape[1]
        mask = visible(context, T, S, x_BTD.device)
        everything = self.indexer.topk >= S and not context.keep_selection and replay_BTk is None
        if everything and context.indexer_stage is None:
            return self.output(self.dense(q_BTHx, e_BSx, mask), x_BTD), Indexing()
        if mask is None:
            mask = torch.ones(1, T, S, dtype=torch.bool, device=x_BTD.device).tril()
        outputs: list[Tensor] = []
        records: list[Indexing] = []
        w = self.indexer.queries(r_BTQ, x_BTD, context)
        chunk = max(1, SCORE_ELEMENTS // (B * self.indexer.J * S))
        for at in range(0, T, chunk):
            part = slice(at, at + chunk)
            scores = index_scores(w[0][:, part], w[1][:, part], k_BSI)
            seen = mask[:, part].expand_as(scores)
            if replay_BTk is None:
                kept = select(scores, seen, self.indexer.topk)
            else:
                kept = selected_mask(replay_BTk[:, part], S)
            if context.indexer_stage == "dense":
                outputs.append(self.dense(q_BTHx[:, part], e_BSx, seen))
            else:
                outputs.append(self.attend(q_BTHx[:, part], e_BSx, kept))
            records.append(self._record(q_BTHx[:, part], e_BSx, scores, seen, kept, context))
        return self.output(torch.cat(outputs, dim=1), x_BTD), _joined(records, context.valid_BT)

    def dense(self, q_BTHx: Tensor, e_BSx: Tensor, mask_BTS: Tensor | None) -> Tensor:
        """MLA, in the cheaper of its two forms."""
        few = q_BTHx.shape[1] <= 4 and mask_BTS is not None  # the absorbed form has no causal triangle of its own
        return (self.absorbed if few else self.expanded)(q_BTHx, e_BSx, mask_BTS)

    def attend(self, q_BTHx: Tensor, e_BSx: Tensor, kept_BTS: Tensor) -> Tensor:
        """Attention over the kept keys: by a mask while the context is short, by gathering them once it is long."""
        S, k = kept_BTS.shape[-1], self.indexer.topk
        if 2 * k * (2 * self.L + self.R) >= S * (self.N + self.R + self.V):
            return self.dense(q_BTHx, e_BSx, kept_BTS)
        return self.gathered(q_BTHx, e_BSx, selected_ids(kept_BTS, k))

    def gathered(self, q_BTHx: Tensor, e_BSx: Tensor, ids_BTk: Tensor) -> Tensor:
        """The absorbed form over each query's own keys: cost and memory go with k, not with S."""
        B, T, k = ids_BTk.shape
        at = ids_BTk.clamp(min=0).view(B, T * k, 1).expand(-1, -1, e_BSx.shape[-1])
        e_BTkx = e_BSx.gather(1, at).view(B, T, k, -1)
        scores = torch.einsum("bthx,btkx->bthk", self.absorb(q_BTHx), e_BTkx) * self.scale
        scores = scores.masked_fill((ids_BTk < 0)[:, :, None], float("-inf"))
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
        return self.values(torch.einsum("bthk,btkl->bthl", weights, e_BTkx[..., : self.L]))

    def _record(
        self, q_BTHx: Tensor, e_BSx: Tensor, scores: Tensor, seen: Tensor, kept: Tensor, context: Context
    ) -> Indexing:
        record = Indexing(selected=selected_ids(kept, self.indexer.topk) if context.keep_selection else None)
        if context.indexer_stage is None:
            return record
        support = seen if context.indexer_stage == "dense" else kept
        p_BTS = self.attention_mass(q_BTHx, e_BSx, support)
        record.kl = divergence(p_BTS, scores, support)
        if context.indexer_stage == "dense":
            record.mass = (p_BTS * kept).sum(-1)
        return record

    @torch.no_grad()
    def attention_mass(self, q_BTHx: Tensor, e_BSx: Tensor, support_BTS: Tensor) -> Tensor:
        """p [B, T, S]: the heads' attention probabilities over `support`, averaged, without gradient."""
        q = self.absorb(q_BTHx)
        scores = torch.einsum("bthx,bsx->bths", q, e_BSx) * self.scale
        wide = torch.promote_types(scores.dtype, torch.float32)
        return scores.masked_fill(~support_BTS[:, :, None], float("-inf")).softmax(-1, dtype=wide).mean(2)

    def new_cache(self, rows: int) -> DSACache:  # type: ignore[override]
        """An empty cache for `rows` sequences."""
        empty = self.kv_b_proj.weight.new_zeros(rows, 0, self.L + self.R)
        return DSACache(empty, empty.new_zeros(rows, 0, self.indexer.I))


def divergence(p_BTS: Tensor, scores_BTS: Tensor, support_BTS: Tensor) -> Tensor:
    """KL( p || softmax of the scores over the support ) of every query, [B, T]."""
    log_q = scores_BTS.masked_fill(~support_BTS, float("-inf")).log_softmax(-1).masked_fill(~support_BTS, 0.0)
    return (torch.special.xlogy(p_BTS, p_BTS) - p_BTS * log_q).sum(-1)


def _joined(records: list[Indexing], valid_BT: Tensor | None) -> Indexing:
    def cat(parts: list[Tensor | None]) -> Tensor | None:
        return None if parts[0] is None else torch.cat([part for part in parts if part is not None], dim=1)

    joined = Indexing(*(cat([getattr(r, name) for r in records]) for name in ("kl", "mass", "selected")))
    if valid_BT is not None:
        joined.kl = None if joined.kl is None else joined.kl * valid_BT
        joined.mass = None if joined.mass is None else joined.mass * valid_BT
    return joined


__all__ = ["DSA", "IndexerStage", "Indexing", "divergence"]
