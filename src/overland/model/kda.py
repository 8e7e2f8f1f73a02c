"""Kimi Delta Attention: a gated delta-rule recurrence with a per-channel forget gate.

    q, k, v = SiLU(conv(W x));  g = log decay(x);  beta = sigmoid(W_b x)
    S <- diag(exp(g)) S;  S <- S + k (beta (v - S^T k))^T;  y = W_o( norm(S^T q) * sigmoid(W_g x) )

Shapes: B batch, T tokens, D model, H heads, K key dim, V value dim (K = V), P = H * K.
Source: Kimi Linear (2025) §3-4; Kimi K3 report §2.1.1; reference/architecture.md §4.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland import kernels
from overland.model.cache import KDACache
from overland.model.config import DecoderConfig
from overland.model.context import Context
from overland.model.norm import RMSNorm
from overland.model.packing import Packing


class ShortConv(nn.Module):
    """The taps of one depthwise causal convolution, stored [P, 1, W] as in the released files."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 1, taps))


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

    def forward(self, x_BTD: Tensor, context: Context | None = None, cache: KDACache | None = None) -> Tensor:
        context = context or Context()
        B, T, _ = x_BTD.shape
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        documents = context.documents
        qkv_B3TP, history = self._short_conv(x_BTD, documents, cache)
        q_BTHK, k_BTHK, v_BTHV = (part.view(B, T, self.H, self.K) for part in qkv_B3TP.to(wide).chunk(3, dim=-1))
        g_BTHK = self._log_decay(x_BTD)
        beta_BTH = self.b_proj(x_BTD).to(wide).sigmoid()
        state, lengths = cache.state if cache else None, context.packing.lengths if context.packing else None
        bounded = self.lower_bound is not None
        o_BTHV, state = kernels.kda(
            q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state, documents, bounded, lengths_B=lengths, unit=True
        )
        if cache is not None:
            cache.state, cache.tail = state, self._next_tail(history, context.packing)

        gate = self.g_proj(x_BTD) if self.full_rank_gate else self.g_b_proj(self.g_a_proj(x_BTD))
        gate_BTHV = gate.to(wide).view(B, T, self.H, self.K).sigmoid()
        return self.o_proj((self.o_norm(o_BTHV) * gate_BTHV).to(x_BTD.dtype).view(B, T, -1))

    def _short_conv(self, x_BTD: Tensor, documents: Tensor | None, cache: KDACache | None) -> tuple[Tensor, Tensor]:
        """SiLU of the convolved projections, q, k and v side by side, and the inputs with their history."""
        w_qkv = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        taps = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])[:, 0]
        u = F.linear(x_BTD, w_qkv).to(torch.promote_types(x_BTD.dtype, taps.dtype))
        y, history = kernels.short_conv(u, taps, cache.tail if cache else None, documents)
        return F.silu(y), history

    def _log_decay(self, x_BTD: Tensor) -> Tensor:
        """K3: in (lower_bound, 0), so that a 16-token tile of the chunk form stays finite. Kimi-Linear: unbounded."""
        z = self.f_b_proj(self.f_a_proj(x_BTD)).to(self.dt_bias.dtype) + self.dt_bias
        z_BTHK, rate_H1 = z.view(*x_BTD.shape[:2], self.H, self.K), self.A_log.exp()[:, None]
        if self.lower_bound is None:
            return -rate_H1 * F.softplus(z_BTHK)
        return self.lower_bound * torch.sigmoid(rate_H1 * z_BTHK)

    def _next_tail(self, history: Tensor, packing: Packing | None) -> Tensor:
        """The W-1 convolution inputs that precede the next token of each row."""
        keep = self.q_conv1d.weight.shape[-1] - 1
        if packing is None or packing.lengths is None:
            return history[:, history.shape[1] - keep :]
        at = packing.lengths[:, None] + torch.arange(keep, device=history.device)
        return history.gather(1, at[..., None].expand(-1, -1, history.shape[-1]))

    def new_cache(self, rows: int) -> KDACache:
        """An empty cache for `rows` sequences."""
        taps = self.q_conv1d.weight
        wide = torch.promote_types(taps.dtype, torch.float32)
        return KDACache(
            taps.new_zeros(rows, taps.shape[-1] - 1, 3 * self.H * self.K),
            taps.new_zeros(rows, self.H, self.K, self.K, dtype=wide),
        )
