"""One decoder layer: a mixer and a feed-forward, each behind a norm, and the residual that joins them.

    standard   s <- s + mixer(norm(s));  s <- s + ffn(norm(s))
    attnres    the same, but each sublayer reads a depth mix of finished blocks and the running sum s, and the first
               sublayer of a block starts a new sum

Shapes: B batch, T tokens, D model. Source: Kimi K3 report §2.3; reference/architecture.md §2.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from overland.model.attnres import depth_mix
from overland.model.cache import LayerCache
from overland.model.config import DecoderConfig
from overland.model.context import Context
from overland.model.dsa import DSA, Indexing
from overland.model.feed_forward import FeedForward
from overland.model.gqa import GQA
from overland.model.kda import KDA
from overland.model.mla import MLA
from overland.model.moe import MoE, Routing
from overland.model.norm import RMSNorm
from overland.model.stepping import steps


@dataclass
class Record:
    """What a layer leaves for losses and meters."""

    routing: Routing | None = None
    indexing: Indexing | None = None


class DepthProj(nn.Module):
    """One pseudo-query over depth [1, D]; zero is the plain average."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size))


def depth_read(bank: list[Tensor], s_BTD: Tensor, proj: DepthProj, norm: RMSNorm) -> Tensor:
    """An average of the finished blocks' sums and the running one, weighted by `proj` and `norm`."""
    return depth_mix([*bank, s_BTD], proj.weight, norm.weight, norm.eps)


def mixer(config: DecoderConfig, index: int) -> nn.Module:
    """The mixer that the config names for a layer."""
    layer = config.layers[index]
    if layer.mixer == "kda":
        return KDA(config)
    if layer.mixer == "gqa":
        return GQA(config, layer.window)
    return DSA(config) if layer.mixer == "dsa" else MLA(config)


class DecoderLayer(nn.Module):
    """`forward` takes and returns the running sum [B, T, D] and the bank of finished blocks (empty where standard)."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        D, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = mixer(config, index)
        self.mlp: FeedForward | None = None
        self.block_sparse_moe: MoE | None = None
        if config.is_moe(index):
            self.block_sparse_moe = MoE(config)
        else:
            assert config.dense_width is not None
            self.mlp = FeedForward(D, config.dense_width, config.activation, config.mlp_bias)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(D, eps), RMSNorm(D, eps)
        self.opens_block = config.attn_res_block is not None and index % config.attn_res_block == 0
        if config.attn_res_block is not None:
            self.self_attention_res_norm, self.mlp_res_norm = RMSNorm(D, eps), RMSNorm(D, eps)
            self.self_attention_res_proj, self.mlp_res_proj = DepthProj(D), DepthProj(D)

    def forward(
        self,
        s_BTD: Tensor,
        bank: list[Tensor],
        context: Context,
        cache: LayerCache | None = None,
        replay_Nk: Tensor | None = None,
        replay_BTk: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], Record]:
        """`replay_Nk` and `replay_BTk`: recorded expert ids and selected keys, used instead of a new choice."""
        record = Record()
        h = self.mix(bank, s_BTD, "self_attention")
        if self.opens_block:
            bank = [*bank, s_BTD]
        x = self.input_layernorm(h)
        if isinstance(self.self_attn, DSA):
            a, record.indexing = self.self_attn(x, context, cache, replay_BTk)
        else:
            a = self.self_attn(x, context, cache)
        s_BTD = a if self.opens_block else s_BTD + a  # a new block's sum starts from the attention output alone
        x = self.post_attention_layernorm(self.mix(bank, s_BTD, "mlp"))
        stepping = cache is not None and steps(x, context)
        if self.block_sparse_moe is not None:
            y, record.routing = self.block_sparse_moe(x, context.valid_BT, replay_Nk, stepping)
        else:
            assert self.mlp is not None
            y = self.mlp(x, stepping)
        return s_BTD + y, bank, record

    def mix(self, bank: list[Tensor], s: Tensor, sublayer: str) -> Tensor:
        """What `sublayer` ("self_attention" or "mlp") reads; with no finished block that is the running sum itself."""
        if not bank:
            return s
        return depth_read(bank, s, getattr(self, f"{sublayer}_res_proj"), getattr(self, f"{sublayer}_res_norm"))
