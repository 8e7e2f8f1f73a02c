"""Context parallel: each rank of `cp` computes one stretch of every row, and what later tokens need of it travels.

    MLA, GQA, DSA   latents (or keys and values) of all stretches are gathered: (cp - 1) / cp * B * S * width
    KDA             over a stretch the state moves as S' = A S + b, and the output is o + a S for the state S that
                    comes in. One run of the kernel from S = 0 gives b and o, one from S = I (and nothing written)
                    A and a; (A, b) are gathered, 2 B H K K numbers a rank whatever the length, and folded in order.
    convolutions    the last W - 1 inputs of the stretch before: B (W - 1) C numbers to the next rank

A document that ends at a stretch's edge lets no state and no input through. Every rank is given whole rows of ids.
Later stretches have more to attend to, so attention's work is not even; KDA's is.

Shapes: B batch, S tokens of a row, T of this rank's stretch, D model, H heads, K key dim, V value dim (= K), W taps.
Source: arXiv:2405.03067 and maxtext#5040 (affine scan of states); reference/training.md §4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from overland import kernels
from overland.model.context import Context, visible, visible_range
from overland.model.dsa import DSA, Indexing
from overland.model.gqa import GQA
from overland.model.kda import DEEPEST_TILE, KDA
from overland.model.mla import MLA
from overland.model.packing import Packing
from overland.model.rope import Rotary, rotate
from overland.parallel.ahead import neighbour
from overland.parallel.collectives import gather, part


def stretch_mixer(module: nn.Module, cp: dist.ProcessGroup) -> None:
    """Let a mixer run on this rank's stretch [B, T, D]; its context is that of whole rows."""
    run = {KDA: kda, GQA: gqa, DSA: dsa, MLA: mla}[type(module)]

    def forward(x_BTD: Tensor, context: Context | None = None, cache: None = None, replay: Any = None) -> Any:
        if cache is not None:
            raise ValueError("context parallel trains: it takes no cache")
        given = (replay,) if isinstance(module, DSA) else ()
        return run(module, x_BTD, context or Context(), cp, *given)  # type: ignore[operator]

    module.forward = forward


def mla(self: MLA, x_BTD: Tensor, context: Context, cp: dist.ProcessGroup) -> Tensor:
    """Every rank has all latents, one small vector a token, and its own queries."""
    own = stretch(context, cp)
    q_BTHx = self.queries(self.query_latent(x_BTD), own)
    e_BSx = gather(self.latents(x_BTD, own), cp)
    return self.output(self.expanded(q_BTHx, e_BSx, seen(context, x_BTD, cp)), x_BTD)


def dsa(
    self: DSA, x_BTD: Tensor, context: Context, cp: dist.ProcessGroup, replay_BTk: Tensor | None
) -> tuple[Tensor, Indexing]:
    """The same, and the indexer's keys."""
    own = stretch(context, cp)
    r_BTQ = self.query_latent(x_BTD)
    q_BTHx = self.queries(r_BTQ, own)
    e_BSx, k_BSI = gather(self.latents(x_BTD, own), cp), gather(self.indexer.keys(x_BTD, own), cp)
    S = e_BSx.shape[1]
    if self.indexer.topk >= S and own.indexer_stage is None and replay_BTk is None and not own.keep_selection:
        return self.output(self.dense(q_BTHx, e_BSx, seen(context, x_BTD, cp)), x_BTD), Indexing()
    begin_BS, end_BS = visible_range(context, x_BTD.shape[0], S, x_BTD.device)
    indexer = (*self.indexer.queries(r_BTQ, x_BTD, own), k_BSI)
    o_BTHV, found = self.select(q_BTHx, e_BSx, indexer, (part(begin_BS, cp), part(end_BS, cp)), own, replay_BTk)
    return self.output(o_BTHV, x_BTD), found


def gqa(self: GQA, x_BTD: Tensor, context: Context, cp: dist.ProcessGroup) -> Tensor:
    """Every rank has all keys and values and its own queries."""
    B, T, _ = x_BTD.shape
    own = stretch(context, cp)
    q_BTHK = self.q_proj(x_BTD).view(B, T, self.H, self.K)
    k_BTGK, v_BTGK = (proj(x_BTD).view(B, T, self.G, self.K) for proj in (self.k_proj, self.v_proj))
    if self.qk_norm:
        q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
    if own.rotary is not None:
        q_BTHK, k_BTGK = rotate(q_BTHK, own.rotary), rotate(k_BTGK, own.rotary)
    kv_BSGK = gather(torch.cat([k_BTGK, v_BTGK], dim=-1), cp)
    k_BSGK, v_BSGK = kv_BSGK.chunk(2, dim=-1)
    mask_BTS = seen(context, x_BTD, cp, self.window)
    return self.o_proj(self._attend(q_BTHK, k_BSGK, v_BSGK, mask_BTS).reshape(B, T, -1))


def kda(self: KDA, x_BTD: Tensor, context: Context, cp: dist.ProcessGroup) -> Tensor:
    """The recurrence over this stretch, from the state that the stretches before leave."""
    B, T, _ = x_BTD.shape
    own, wide = stretch(context, cp), torch.promote_types(x_BTD.dtype, torch.float32)
    documents, lengths = own.documents, own.packing.lengths if own.packing else None
    parts, taps = self._projected(x_BTD)
    tail = before(torch.cat(parts, dim=-1), taps[0].shape[-1] - 1, context, cp)
    (q, k, v), _ = kernels.short_conv(parts, taps, tail, documents, lengths)
    q_BTHK, k_BTHK, v_BTHV = (x.to(wide).view(B, T, self.H, self.K) for x in (q, k, v))
    g_BTHK, beta_BTH = self._log_decay(x_BTD), self.b_proj(x_BTD).to(wide).sigmoid()
    # twice the heads: the first run from nothing, the second from the identity and write nothing
    twice = [torch.cat([x, x], dim=2) for x in (q_BTHK, k_BTHK, g_BTHK, beta_BTH)]
    v2 = torch.cat([v_BTHV, torch.zeros_like(v_BTHV)], dim=2)
    eye = torch.eye(self.K, dtype=wide, device=v.device).expand(B, self.H, -1, -1)
    start = torch.cat([torch.zeros_like(eye), eye], dim=1)
    bounded = self.lower_bound is not None and self.lower_bound >= DEEPEST_TILE
    q2, k2, g2, beta2 = twice
    o_BTGV, end_BGKV = kernels.kda(q2, k2, v2, g2, beta2, start, documents, bounded, lengths, unit=True)
    o_BTHV, a_BTHK = o_BTGV.chunk(2, dim=2)
    entering = entering_state(end_BGKV, context, cp)
    o_BTHV = o_BTHV + torch.einsum("bthk,bhkv->bthv", a_BTHK, entering)

    gate = self.g_proj(x_BTD) if self.full_rank_gate else self.g_b_proj(self.g_a_proj(x_BTD))
    o_BTHV = self.o_norm(o_BTHV, gate.to(wide).view(B, T, self.H, self.K))
    return self.o_proj(o_BTHV.to(x_BTD.dtype).view(B, T, -1))


def entering_state(end_B2HKV: Tensor, context: Context, cp: dist.ProcessGroup) -> Tensor:
    """The state [B, H, K, V] that this stretch begins with, from every stretch's (b, A), the heads side by side."""
    added, moves = (gather(end_B2HKV[None], cp, 0)).chunk(2, dim=2)
    state = torch.zeros_like(added[0])
    entering = [state]
    for rank in range(cp.size() - 1):
        state = (moves[rank] @ state + added[rank]) * goes_on(context, rank + 1, cp, state)
        entering.append(state)
    return torch.stack(entering)[cp.rank()]  # every rank folds all, so that every rank sends gradients back


def before(u_BTC: Tensor, count: int, context: Context, cp: dist.ProcessGroup) -> Tensor:
    """The `count` inputs before this stretch [B, count, C], zero where they belong to another document."""
    tail = neighbour(u_BTC[:, u_BTC.shape[1] - count :], cp, 1)
    if context.documents is None or cp.rank() == 0:
        return tail
    first = cp.rank() * u_BTC.shape[1]
    same = context.documents[:, first - count : first] == context.documents[:, first : first + 1]
    return tail * same[..., None].to(tail.dtype)


def goes_on(context: Context, rank: int, cp: dist.ProcessGroup, like: Tensor) -> Tensor:
    """1 where the document that ends the stretch before `rank`'s goes on in it, [B, 1, 1, 1] or a scalar."""
    if context.documents is None:
        return like.new_ones(())
    first = rank * (context.documents.shape[1] // cp.size())
    same = context.documents[:, first] == context.documents[:, first - 1]
    return same.to(like.dtype)[:, None, None, None]


def stretch(context: Context, cp: dist.ProcessGroup) -> Context:
    """The context of this rank's tokens; documents keep their numbers."""
    if cp.size() == 1:
        return context
    rotary, valid, packing = context.rotary, context.valid_BT, context.packing
    if packing is not None:
        documents = None if packing.documents is None else part(packing.documents, cp)
        lengths = packing.lengths
        if lengths is not None and valid is not None:
            lengths = part(valid, cp).sum(1)  # the real tokens come first
        packing = Packing(documents, lengths)
    return replace(
        context,
        packing=packing,
        rotary=None if rotary is None else Rotary(part(rotary.cos, cp), part(rotary.sin, cp)),
        valid_BT=None if valid is None else part(valid, cp),
    )


def seen(context: Context, x_BTD: Tensor, cp: dist.ProcessGroup, window: int | None = None) -> Tensor:
    """Which of the row's tokens this stretch's may see, [B or 1, T, S] bool."""
    T = x_BTD.shape[1]
    S, first = T * cp.size(), T * cp.rank()
    offset = torch.tensor([first], device=x_BTD.device)
    mask = visible(replace(context, packing=None, lengths_B=offset), T, S, x_BTD.device, window)
    assert mask is not None
    if context.documents is None:
        return mask
    return mask & (context.documents[:, first : first + T, None] == context.documents[:, None])
