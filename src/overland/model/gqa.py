"""Grouped-query attention with rotary positions: several query heads share one key-value head.

    o_h(t) = sum_s softmax_s( q_h(t).k_g(s) / sqrt(K) ) v_g(s)

With a sink, exp(b_h) is added to the softmax's denominator: a head may attend to nothing.

Shapes: B batch, T new tokens, S tokens seen, D model, H heads, G key-value heads, K head dim.
Source: Ainslie et al. 2023; Qwen3 report (query and key norms); gpt-oss model card (sinks, sliding window).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland.model.cache import GQACache, append
from overland.model.config import DecoderConfig
from overland.model.context import Context, visible
from overland.model.norm import RMSNorm
from overland.model.rope import rotate


class GQA(nn.Module):
    """One GQA mixer. `forward(x_BTD)` returns [B, T, D] and, where a cache was given, appends to it.

    `window` limits how many tokens a query sees, itself included.
    """

    def __init__(self, config: DecoderConfig, window: int | None = None) -> None:
        super().__init__()
        assert config.gqa is not None
        gqa, D = config.gqa, config.hidden_size
        self.H, self.G, self.K, self.window = gqa.heads, gqa.kv_heads, gqa.head_dim, window
        self.q_proj = nn.Linear(D, self.H * self.K, bias=gqa.bias)
        self.k_proj = nn.Linear(D, self.G * self.K, bias=gqa.bias)
        self.v_proj = nn.Linear(D, self.G * self.K, bias=gqa.bias)
        self.o_proj = nn.Linear(self.H * self.K, D, bias=gqa.output_bias)
        if gqa.qk_norm:
            self.q_norm, self.k_norm = (RMSNorm(self.K, config.rms_norm_eps) for _ in range(2))
        self.qk_norm = gqa.qk_norm
        self.sinks = nn.Parameter(torch.zeros(self.H)) if gqa.sinks else None

    def forward(self, x_BTD: Tensor, context: Context | None = None, cache: GQACache | None = None) -> Tensor:
        context = context or Context()
        B, T, _ = x_BTD.shape
        q_BTHK = self.q_proj(x_BTD).view(B, T, self.H, self.K)
        k_BTGK, v_BTGK = (proj(x_BTD).view(B, T, self.G, self.K) for proj in (self.k_proj, self.v_proj))
        if self.qk_norm:
            q_BTHK, k_BTGK = self.q_norm(q_BTHK), self.k_norm(k_BTGK)
        if context.rotary is not None:
            q_BTHK, k_BTGK = rotate(q_BTHK, context.rotary), rotate(k_BTGK, context.rotary)
        k_BSGK, v_BSGK = k_BTGK, v_BTGK
        if cache is not None and context.lengths_B is not None:
            cache.keys = append(cache.keys, k_BTGK, context.lengths_B)
            cache.values = append(cache.values, v_BTGK, context.lengths_B)
            S = int(context.lengths_B.max()) + T
            k_BSGK, v_BSGK = cache.keys[:, :S], cache.values[:, :S]
        mask = visible(context, T, k_BSGK.shape[1], x_BTD.device, self.window)
        return self.o_proj(self._attend(q_BTHK, k_BSGK, v_BSGK, mask).reshape(B, T, -1))

    def _attend(self, q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, mask_BTS: Tensor | None) -> Tensor:
        q, k, v = q_BTHK.transpose(1, 2), k_BSGK.transpose(1, 2), v_BSGK.transpose(1, 2)
        mask = None if mask_BTS is None else mask_BTS[:, None]
        if self.sinks is not None:
            return self._with_sinks(q, k, v, mask).transpose(1, 2)
        grouped = self.G != self.H
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return o.transpose(1, 2)

    def _with_sinks(self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask: Tensor | None) -> Tensor:
        """The sink is one more key of score `sinks[h]` and value zero."""
        assert self.sinks is not None
        B, H, T, K = q_BHTK.shape
        S, wide = k_BGSK.shape[2], torch.promote_types(q_BHTK.dtype, torch.float32)
        if mask is None:
            mask = torch.ones(1, 1, T, S, dtype=torch.bool, device=q_BHTK.device).tril()
        q = q_BHTK.reshape(B, self.G, H // self.G * T, K)
        scores = (q @ k_BGSK.transpose(-1, -2)).view(B, H, T, S).to(wide) * K**-0.5
        scores = scores.masked_fill(~mask, float("-inf"))
        sink = self.sinks.to(wide).view(1, H, 1, 1).expand(B, H, T, 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1].to(q.dtype)
        return (weights.view(B, self.G, -1, S) @ v_BGSK).view(B, H, T, K)

    def new_cache(self, rows: int) -> GQACache:
        """An empty cache for `rows` sequences."""
        empty = self.k_proj.weight.new_zeros(rows, 0, self.G, self.K)
        return GQACache(empty, empty.clone())
