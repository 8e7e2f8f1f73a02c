"""Gated multi-head latent attention without positions (NoPE): keys and values are read out of one small latent.

Shapes: B batch, T new tokens, S tokens seen, D model, H heads, N nope dim, R "rope" dim (kept, never rotated),
V value dim, L KV latent. Source: DeepSeek-V2 §2.1; Kimi K3 report §2.1.2; reference/architecture.md §5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland.model.cache import MLACache
from overland.model.config import DecoderConfig
from overland.model.norm import RMSNorm
from overland.model.packing import Packing

SPARE_SLOTS = 64  # how many tokens a decoding cache grows by at a time


class MLA(nn.Module):
    """One gated MLA mixer. `forward(x_BTD)` returns [B, T, D] and, where a cache was given, appends to it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        D, self.H = config.hidden_size, config.num_attention_heads
        self.N, self.R, self.V = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.L = config.kv_lora_rank
        self.scale = (self.N + self.R) ** -0.5
        self.q_a_proj = nn.Linear(D, config.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.latent_norm_eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, self.H * (self.N + self.R), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(D, self.L + self.R, bias=False)
        self.kv_a_layernorm = RMSNorm(self.L, config.latent_norm_eps)
        self.kv_b_proj = nn.Linear(self.L, self.H * (self.N + self.V), bias=False)
        self.g_proj = nn.Linear(D, self.H * self.V, bias=False)
        self.o_proj = nn.Linear(self.H * self.V, D, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        packing: Packing | None = None,
        cache: MLACache | None = None,
        lengths_B: Tensor | None = None,
    ) -> Tensor:
        """`lengths_B` [B] says how many tokens of the cache are real in each row; it comes with the cache."""
        B, T, _ = x_BTD.shape
        q_BTHx = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTD))).view(B, T, self.H, self.N + self.R)
        latent, shared_key = self.kv_a_proj_with_mqa(x_BTD).split([self.L, self.R], dim=-1)
        e_BTx = torch.cat([self.kv_a_layernorm(latent), shared_key], dim=-1)

        if cache is None or lengths_B is None:
            o_BTHV = self._expanded(q_BTHx, e_BTx, _mask(packing, None, T, T, x_BTD.device))
        else:
            cache.latents = _append(cache.latents, e_BTx, lengths_B)
            e_BSx = cache.latents[:, : int(lengths_B.max()) + T]
            mask = _mask(packing, lengths_B, T, e_BSx.shape[1], x_BTD.device)
            o_BTHV = self._absorbed(q_BTHx, e_BSx, mask) if T <= 4 else self._expanded(q_BTHx, e_BSx, mask)
        return self.o_proj(o_BTHV.reshape(B, T, -1) * self.g_proj(x_BTD).sigmoid())

    def _expanded(self, q_BTHx: Tensor, e_BSx: Tensor, mask: Tensor | None) -> Tensor:
        """Keys and values of every head are formed: the cheaper way when many queries share them."""
        B, S, _ = e_BSx.shape
        kv = self.kv_b_proj(e_BSx[..., : self.L]).view(B, S, self.H, self.N + self.V)
        shared = e_BSx[:, :, None, self.L :].expand(B, S, self.H, self.R)
        k = torch.cat([kv[..., : self.N], shared], dim=-1).transpose(1, 2)
        v, q = kv[..., self.N :].transpose(1, 2), q_BTHx.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale)
        return o.transpose(1, 2)

    def _absorbed(self, q_BTHx: Tensor, e_BSx: Tensor, mask: Tensor | None) -> Tensor:
        """kv_b_proj is moved to the query and the output, so a token's latent is its key: the way to decode."""
        w = self.kv_b_proj.weight.view(self.H, self.N + self.V, self.L)
        q_latent = torch.einsum("bthn,hnl->bthl", q_BTHx[..., : self.N], w[:, : self.N])
        q = torch.cat([q_latent, q_BTHx[..., self.N :]], dim=-1)
        B, T, H, x = q.shape
        scores = (q.reshape(B, T * H, x) @ e_BSx.transpose(1, 2)).view(B, T, H, -1) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask.transpose(1, 2), float("-inf"))
        weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        m = (weights.view(B, T * H, -1) @ e_BSx[..., : self.L]).view(B, T, H, self.L)
        return torch.einsum("bthl,hvl->bthv", m, w[:, self.N :])

    def new_cache(self, rows: int) -> MLACache:
        """An empty cache for `rows` sequences."""
        return MLACache(self.kv_b_proj.weight.new_zeros(rows, 0, self.L + self.R))


def _append(old_BSx: Tensor, new_BTx: Tensor, lengths_B: Tensor) -> Tensor:
    """`new` written behind each row's `lengths_B` slots; what lies past a row's new length is junk, masked when read.

    Without gradients there are spare slots and the write is in place, so that decoding copies nothing; with them a new
    tensor is made.
    """
    T, longest = new_BTx.shape[1], int(lengths_B.max())
    at = lengths_B[:, None] + torch.arange(T, device=new_BTx.device)
    if torch.is_grad_enabled():
        if longest == int(lengths_B.min()):
            return torch.cat([old_BSx[:, :longest], new_BTx], dim=1)
        grown = F.pad(old_BSx[:, :longest], (0, 0, 0, T))
        return grown.scatter(1, at[..., None].expand_as(new_BTx), new_BTx)
    if longest + T > old_BSx.shape[1]:
        old_BSx = F.pad(old_BSx[:, :longest], (0, 0, 0, T + SPARE_SLOTS))
    return old_BSx.scatter_(1, at[..., None].expand_as(new_BTx), new_BTx)


def _mask(packing: Packing | None, lengths_B: Tensor | None, T: int, S: int, device: torch.device) -> Tensor | None:
    """Who may be seen, [B or 1, 1, T, S]; None stands for the plain causal triangle."""
    documents = packing.documents if packing else None
    if lengths_B is None and documents is None:
        return None
    at_query = torch.arange(T, device=device)[None] + (0 if lengths_B is None else lengths_B[:, None])
    mask = torch.arange(S, device=device)[None, None] <= at_query[..., None]
    if documents is not None:
        if lengths_B is not None:
            raise ValueError("documents in a packed row and a cache do not go together")
        mask = mask & (documents[:, :, None] == documents[:, None, :])
    return mask[:, None]
