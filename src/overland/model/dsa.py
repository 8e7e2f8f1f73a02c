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

from overland import kernels
from overland.model.cache import DSACache, LayerCache, append
from overland.model.config import DecoderConfig
from overland.model.context import Context, IndexerStage, visible, visible_range
from overland.model.indexer import Indexer
from overland.model.mla import MLA

# Queries are taken in pieces, so that memory stays flat: so many numbers of the kept keys' places, or, where the
# indexer learns, of its dots at a time.
ID_ELEMENTS, SCORE_ELEMENTS = 1 << 20, 1 << 22


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
        S, stage = T, context.indexer_stage
        if isinstance(cache, DSACache) and context.lengths_B is not None:
            S += int(context.lengths_B.max())
            e_BSx = cache.latents = append(cache.latents, e_BSx, context.lengths_B)
            k_BSI = cache.keys = append(cache.keys, k_BSI, context.lengths_B)
        if self.indexer.topk >= S and stage is None and replay_BTk is None and not context.keep_selection:
            o_BTHV = self.dense(q_BTHx, e_BSx[:, :S], visible(context, T, S, x_BTD.device))
            return self.output(o_BTHV, x_BTD), Indexing()
        if stage is not None or torch.is_grad_enabled():
            e_BSx, k_BSI = e_BSx[:, :S], k_BSI[:, :S]  # else spare slots stay: no query's range reaches them
        seen = visible_range(context, B, T, x_BTD.device)
        indexer = (*self.indexer.queries(r_BTQ, x_BTD, context), k_BSI)
        o_BTHV, found = self.select(q_BTHx, e_BSx, indexer, seen, context, replay_BTk)
        return self.output(o_BTHV, x_BTD), found

    def select(
        self,
        q_BTHx: Tensor,
        e_BSx: Tensor,
        indexer: tuple[Tensor, Tensor, Tensor],
        seen: tuple[Tensor, Tensor],
        context: Context,
        replay_BTk: Tensor | None,
    ) -> tuple[Tensor, Indexing]:
        """Attention [B, T, H, V] over the keys that the indexer keeps, and what that leaves.

        `indexer` holds its queries [B, T, J, I], weights [B, T, J] and keys [B, S, I], `seen` every query's range of
        visible keys. Of the context its stage, whether keys are kept, and the valid queries are read.
        """
        q_BTJI, w_BTJ, k_BSI = indexer
        begin_BT, end_BT = seen
        (B, T), S, stage = q_BTHx.shape[:2], e_BSx.shape[1], context.indexer_stage
        outputs: list[Tensor] = []
        records: list[Indexing] = []
        each, most = (B * S * self.indexer.J, SCORE_ELEMENTS) if stage else (B * self.indexer.topk, ID_ELEMENTS)
        for part in kernels.slices(T, each, most):
            scorer, range_ = (q_BTJI[:, part], w_BTJ[:, part], k_BSI), (begin_BT[:, part], end_BT[:, part])
            if replay_BTk is None:
                ids_BTk = kernels.top_keys(*scorer, *range_, self.indexer.topk)
            else:
                ids_BTk = replay_BTk[:, part]
            record = Indexing(selected=ids_BTk if context.keep_selection else None)
            if stage == "dense":
                outputs.append(self.dense(q_BTHx[:, part], e_BSx, between(*range_, S)))
            else:
                outputs.append(self.attend(q_BTHx[:, part], e_BSx, ids_BTk))
            if stage is not None:
                mask_BTS = between(*range_, S) if stage == "dense" else kernels.selected_mask(ids_BTk, S)
                p_BTS = self.attention_mass(q_BTHx[:, part], e_BSx, mask_BTS)
                record.kl = divergence(p_BTS, kernels.index_scores(*scorer), mask_BTS)
                record.mass = (p_BTS * kernels.selected_mask(ids_BTk, S)).sum(-1) if stage == "dense" else None
            records.append(record)
        return torch.cat(outputs, dim=1), _joined(records, context.valid_BT)

    def dense(self, q_BTHx: Tensor, e_BSx: Tensor, mask_BTS: Tensor | None) -> Tensor:
        """MLA, in the cheaper of its two forms."""
        few = q_BTHx.shape[1] <= 4 and mask_BTS is not None  # the absorbed form has no causal triangle of its own
        return (self.absorbed if few else self.expanded)(q_BTHx, e_BSx, mask_BTS)

    def attend(self, q_BTHx: Tensor, e_BSx: Tensor, ids_BTk: Tensor) -> Tensor:
        """Attention over the kept keys; where gradients are wanted and the context is short, by a mask."""
        S, k = e_BSx.shape[1], ids_BTk.shape[-1]
        if torch.is_grad_enabled() and 2 * k * (2 * self.L + self.R) >= S * (self.N + self.R + self.V):
            return self.dense(q_BTHx, e_BSx, kernels.selected_mask(ids_BTk, S))
        return self.gathered(q_BTHx, e_BSx, ids_BTk)

    def gathered(self, q_BTHx: Tensor, e_BSx: Tensor, ids_BTk: Tensor) -> Tensor:
        """The absorbed form over each query's own keys: cost and memory go with k, not with S."""
        return self.values(kernels.attend_selected(self.absorb(q_BTHx), e_BSx, ids_BTk, self.L, self.scale))

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


def between(begin_BT: Tensor, end_BT: Tensor, S: int) -> Tensor:
    """[B, T, S] bool: the keys from `begin` up to and without `end`."""
    at_S = torch.arange(S, device=begin_BT.device)
    return (at_S >= begin_BT[..., None]) & (at_S < end_BT[..., None])


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
