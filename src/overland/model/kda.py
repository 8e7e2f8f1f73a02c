"""Kimi Delta Attention: a gated delta-rule recurrence with a per-channel forget gate.

    q, k, v = SiLU(conv(W x));  g = log decay(x);  beta = sigmoid(W_b x)
    S <- diag(exp(g)) S;  S <- S + k (beta (v - S^T k))^T;  y = W_o( norm(S^T q) * sigmoid(W_g x) )

Shapes: B batch, T tokens, D model, H heads, K key dim, V value dim (K = V), P = H * K.
Source: Kimi Linear (2025) §3-4; Kimi K3 report §2.1.1; reference/architecture.md §4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overland import kernels
from overland.model.cache import KDACache
from overland.model.config import DecoderConfig
from overland.model.context import Context
from overland.model.norm import RMSNorm
from overland.model.stepping import plain_weights


class ShortConv(nn.Module):
    """The taps of one depthwise causal convolution, stored [P, 1, W] as in the released files."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 1, taps))


DEEPEST_TILE = -5.0  # a tile of 16 tokens that decay no faster stays within fp32's exponents


class KDA(nn.Module):
    """One KDA mixer. `forward(x_BTD)` returns [B, T, D] and, where a cache was given, replaces its tensors."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.kda is not None
        kda, D = config.kda, config.hidden_size
        self.H, self.K, self.lower_bound = kda.heads, kda.head_dim, kda.lower_bound
        P, W = self.H * self.K, kda.taps
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(D, P, bias=False) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (ShortConv(P, W) for _ in range(3))
        self.full_rank_gate = kda.full_rank_gate
        if self.full_rank_gate:
            self.g_proj = nn.Linear(D, P, bias=False)
        else:
            self.g_a_proj, self.g_b_proj = nn.Linear(D, self.K, bias=False), nn.Linear(self.K, P, bias=False)
        self.f_a_proj = nn.Linear(D, self.K, bias=False)
        self.f_b_proj = nn.Linear(self.K, P, bias=False)
        self.b_proj = nn.Linear(D, self.H, bias=False)
        self.A_log = nn.Parameter(torch.zeros(self.H))
        self.dt_bias = nn.Parameter(torch.zeros(P))
        self.o_norm = RMSNorm(self.K, config.rms_norm_eps)
        self.o_proj = nn.Linear(P, D, bias=False)
        self._held = kernels.Held()

    def forward(self, x_BTD: Tensor, context: Context | None = None, cache: KDACache | None = None) -> Tensor:
        context = context or Context()
        B, T, _ = x_BTD.shape
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        documents, lengths = context.documents, context.packing.lengths if context.packing else None
        state, tail = (cache.state, cache.tail) if cache else (None, None)
        (q, k, v), tail = kernels.short_conv(*self._projected(x_BTD), tail, documents, lengths)
        q_BTHK, k_BTHK, v_BTHV = (part.to(wide).view(B, T, self.H, self.K) for part in (q, k, v))
        g_BTHK = self._log_decay(x_BTD)
        beta_BTH = self.b_proj(x_BTD).to(wide).sigmoid()
        bounded = self.lower_bound is not None and self.lower_bound >= DEEPEST_TILE
        o_BTHV, state = kernels.kda(
            q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state, documents, bounded, lengths, unit=True
        )
        if cache is not None:
            cache.state, cache.tail = state, tail

        gate = self.g_proj(x_BTD) if self.full_rank_gate else self.g_b_proj(self.g_a_proj(x_BTD))
        o_BTHV = self.o_norm(o_BTHV, gate.to(wide).view(B, T, self.H, self.K))
        return self.o_proj(o_BTHV.to(x_BTD.dtype).view(B, T, -1))

    def step(self, reading: kernels.Reading, context: Context, cache: KDACache) -> Tensor | None:
        """The residual after this mixer for one new token a row, in one kernel, the cache in place; None where that
        cannot be used."""
        gates = ("g_proj",) if self.full_rank_gate else ("g_a_proj", "g_b_proj")
        inner = ("q_proj", "k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", "o_proj")
        linears = plain_weights(self, (*inner, *gates))
        convolutions = plain_weights(self, ("q_conv1d", "k_conv1d", "v_conv1d"), ShortConv)
        norm = plain_weights(self, ("o_norm",), RMSNorm)
        if linears is None or convolutions is None or norm is None:
            return None
        q, k, v, f_a, f_b, b, o, g, *g_b = linears
        gate = (g, g_b[0] if g_b else None)
        weights = kernels.KDAWeights([q, k, v], convolutions, f_a, f_b, b, self.A_log, self.dt_bias, norm[0], o, *gate)
        if not kernels.steps_kda(reading, self._held, weights, cache.tail, cache.state):
            return None
        return kernels.kda_step(reading, self._held, cache.tail, cache.state, self.lower_bound, self.o_norm.eps)

    def _projected(self, x_BTD: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What the short convolutions read, for q, k and v: inputs [B, T, P] and taps [P, W]."""
        taps = [conv.weight[:, 0] for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]
        wide = torch.promote_types(x_BTD.dtype, taps[0].dtype)
        return [proj(x_BTD).to(wide) for proj in (self.q_proj, self.k_proj, self.v_proj)], taps

    def _log_decay(self, x_BTD: Tensor) -> Tensor:
        """K3: in (lower_bound, 0), so that a 16-token tile of the chunk form stays finite. Kimi-Linear: unbounded."""
        z_BTHK = self.f_b_proj(self.f_a_proj(x_BTD)).view(*x_BTD.shape[:2], self.H, self.K)
        return kernels.log_decay(z_BTHK, self.dt_bias.view(self.H, self.K), self.A_log, self.lower_bound)

    def new_cache(self, rows: int) -> KDACache:
        """An empty cache for `rows` sequences."""
        taps = self.q_conv1d.weight
        wide = torch.promote_types(taps.dtype, torch.float32)
        return KDACache(
            taps.new_zeros(rows, taps.shape[-1] - 1, 3 * self.H * self.K),
            taps.new_zeros(rows, self.H, self.K, self.K, dtype=wide),
        )
