"""Multi-head latent attention: keys and values of all heads are read out of one small latent per token.

    r = norm(W_qa x);  [q_n | q_p] = W_qb r;  [c | k_p] = W_kva x;  [k_n | v] = W_kvb norm(c)
    score(t, s) = (q_n.k_n + q_p.k_p) scale;  y = W_o( softmax(score) v * sigmoid(W_g x) )

DeepSeek rotates q_p and k_p; Kimi keeps them unrotated (NoPE). Kimi K3 has the output gate W_g; Kimi-Linear has no
query latent (q = W_q x).
Shapes: B batch, T new tokens, S tokens seen, D model, H heads, N nope dim, R rope dim (k_p is shared by all heads), V
value dim, L KV latent, Q query latent.
Source: DeepSeek-V2 §2.1; Kimi K3 report §2.1.2; reference/architecture.md §5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland import kernels
from overland.model.cache import MLACache, append, with_room
from overland.model.config import DecoderConfig
from overland.model.context import Context, visible
from overland.model.norm import RMSNorm
from overland.model.rope import rotate, softmax_scale
from overland.model.stepping import plain_weights


class MLA(nn.Module):
    """One MLA mixer. `forward(x_BTD)` returns [B, T, D] and, where a cache was given, appends to it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.mla is not None
        mla, D = config.mla, config.hidden_size
        self.H, self.N, self.R, self.V, self.L = mla.heads, mla.nope_dim, mla.rope_dim, mla.value_dim, mla.kv_lora_rank
        self.Q, self.rotates, self.interleaved = mla.q_lora_rank, mla.rotate, mla.interleaved
        self.scale = softmax_scale(config.rope if mla.rotate else None, self.N + self.R)
        if self.Q is None:
            self.q_proj = nn.Linear(D, self.H * (self.N + self.R), bias=False)
        else:
            self.q_a_proj = nn.Linear(D, self.Q, bias=mla.bias)
            self.q_a_layernorm = RMSNorm(self.Q, mla.norm_eps)
            self.q_b_proj = nn.Linear(self.Q, self.H * (self.N + self.R), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(D, self.L + self.R, bias=mla.bias)
        self.kv_a_layernorm = RMSNorm(self.L, mla.norm_eps)
        self.kv_b_proj = nn.Linear(self.L, self.H * (self.N + self.V), bias=False)
        self.g_proj = nn.Linear(D, self.H * self.V, bias=False) if mla.output_gate else None
        self.o_proj = nn.Linear(self.H * self.V, D, bias=mla.bias)
        self._held = kernels.Held()

    def forward(self, x_BTD: Tensor, context: Context | None = None, cache: MLACache | None = None) -> Tensor:
        context = context or Context()
        q_BTHx = self.queries(self.query_latent(x_BTD), context)
        e_BTx = self.latents(x_BTD, context)
        if cache is None or context.lengths_B is None:
            o_BTHV = self.expanded(q_BTHx, e_BTx, visible(context, x_BTD.shape[1], x_BTD.shape[1], x_BTD.device))
        else:
            cache.latents = append(cache.latents, e_BTx, context.lengths_B)
            T = x_BTD.shape[1]
            if T <= 4:  # kv_b_proj is moved to the query and the output, so a token's latent is its key
                q, seen_B = self.absorb(q_BTHx), context.lengths_B
                o_BTHV = self.values(kernels.attend_latents(q, cache.latents, seen_B, self.L, self.scale))
            else:
                e_BSx = cache.latents[:, : int(context.lengths_B.max()) + T]
                o_BTHV = self.expanded(q_BTHx, e_BSx, visible(context, T, e_BSx.shape[1], x_BTD.device))
        return self.output(o_BTHV, x_BTD)

    def step(self, reading: kernels.Reading, context: Context, cache: MLACache) -> Tensor | None:
        """The residual after this mixer for one new token a row, in one kernel; None where it cannot be used."""
        assert context.lengths_B is not None
        query = plain_weights(self, ("q_proj",) if self.Q is None else ("q_a_proj", "q_b_proj"))
        others = plain_weights(self, ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj"))
        gate = plain_weights(self, () if self.g_proj is None else ("g_proj",))
        norms = plain_weights(self, ("kv_a_layernorm", *(() if self.Q is None else ("q_a_layernorm",))), RMSNorm)
        if query is None or others is None or gate is None or norms is None:
            return None
        (q, *q_b), (kv_a, kv_b, o), (kv_norm, *q_norm) = query, others, norms
        query_norm, query_up = (q_norm[0], q_b[0]) if q_b else (None, None)
        weights = kernels.MLAWeights(q, query_norm, query_up, kv_a, kv_norm, kv_b, gate[0] if gate else None, o)
        latents = with_room(cache.latents, context.lengths_B, 1)
        if not kernels.steps_mla(reading, self._held, weights, latents):
            return None
        cache.latents = latents
        rotary = context.rotary if self.rotates else None
        dims, eps = (self.H, self.N, self.R, self.V), self.kv_a_layernorm.eps
        sizes = (context.lengths_B, rotary, self.interleaved, dims, self.scale, eps)
        return kernels.mla_step(reading, self._held, weights, latents, *sizes)

    def query_latent(self, x_BTD: Tensor) -> Tensor:
        """r [B, T, Q], or x itself where there is no query latent."""
        return x_BTD if self.Q is None else self.q_a_layernorm(self.q_a_proj(x_BTD))

    def queries(self, r_BTQ: Tensor, context: Context) -> Tensor:
        """[q_n | q_p] of every head, [B, T, H, N + R], the second part rotated where queries rotate."""
        q = self.q_proj(r_BTQ) if self.Q is None else self.q_b_proj(r_BTQ)
        q_BTHx = q.view(*r_BTQ.shape[:2], self.H, self.N + self.R)
        if not self.rotates:
            return q_BTHx
        assert context.rotary is not None
        q_n, q_p = q_BTHx.split([self.N, self.R], dim=-1)
        return torch.cat([q_n, rotate(q_p, context.rotary, self.interleaved)], dim=-1)

    def latents(self, x_BTD: Tensor, context: Context) -> Tensor:
        """What a token leaves for later ones, [B, T, L + R]: its normed latent and the shared key."""
        latent, key = self.kv_a_proj_with_mqa(x_BTD).split([self.L, self.R], dim=-1)
        if self.rotates:
            assert context.rotary is not None
            key = rotate(key[:, :, None], context.rotary, self.interleaved)[:, :, 0]
        return torch.cat([self.kv_a_layernorm(latent), key], dim=-1)

    def output(self, o_BTHV: Tensor, x_BTD: Tensor) -> Tensor:
        """All heads side by side, gated where there is a gate, and back to the model's width."""
        o = o_BTHV.reshape(*x_BTD.shape[:2], -1)
        return self.o_proj(o if self.g_proj is None else o * self.g_proj(x_BTD).sigmoid())

    def expanded(self, q_BTHx: Tensor, e_BSx: Tensor, mask_BTS: Tensor | None) -> Tensor:
        """Keys and values of every head are formed: the cheaper way when many queries share them."""
        B, S, _ = e_BSx.shape
        kv = self.kv_b_proj(e_BSx[..., : self.L]).view(B, S, self.H, self.N + self.V)
        shared = e_BSx[:, :, None, self.L :].expand(B, S, self.H, self.R)
        k = torch.cat([kv[..., : self.N], shared], dim=-1).transpose(1, 2)
        v, q = kv[..., self.N :].transpose(1, 2), q_BTHx.transpose(1, 2)
        mask = None if mask_BTS is None else mask_BTS[:, None]
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale)
        return o.transpose(1, 2)

    def absorbed(self, q_BTHx: Tensor, e_BSx: Tensor, mask_BTS: Tensor | None) -> Tensor:
        """kv_b_proj is moved to the query and the output, so a token's latent is its key: the way to decode."""
        B, T = q_BTHx.shape[:2]
        q = self.absorb(q_BTHx)
        scores = (q.reshape(B, T * self.H, -1) @ e_BSx.transpose(1, 2)).view(B, T, self.H, -1) * self.scale
        if mask_BTS is not None:
            scores = scores.masked_fill(~mask_BTS[:, :, None], float("-inf"))
        weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        m = (weights.view(B, T * self.H, -1) @ e_BSx[..., : self.L]).view(B, T, self.H, self.L)
        return self.values(m)

    def absorb(self, q_BTHx: Tensor) -> Tensor:
        """Queries against latents, [B, T, H, L + R]: kv_b_proj's key rows applied to the query instead of the key."""
        w = self.kv_b_proj.weight.view(self.H, self.N + self.V, self.L)
        q_latent = torch.einsum("bthn,hnl->bthl", q_BTHx[..., : self.N], w[:, : self.N])
        return torch.cat([q_latent, q_BTHx[..., self.N :]], dim=-1)

    def values(self, m_BTHL: Tensor) -> Tensor:
        """Averaged latents to averaged values [B, T, H, V]."""
        w = self.kv_b_proj.weight.view(self.H, self.N + self.V, self.L)
        return torch.einsum("bthl,hvl->bthv", m_BTHL, w[:, self.N :])

    def new_cache(self, rows: int) -> MLACache:
        """An empty cache for `rows` sequences."""
        return MLACache(self.kv_b_proj.weight.new_zeros(rows, 0, self.L + self.R))
