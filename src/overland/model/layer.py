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

from overland import kernels
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
from overland.model.stepping import steps, untouched


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
        stepping = cache is not None and replay_Nk is None and steps(s_BTD, context)
        sources, bank = bank, [*bank, s_BTD] if self.opens_block else bank
        mixed = self._mixer_step(sources, s_BTD, context, cache) if stepping else None
        if mixed is None:
            x = self.input_layernorm(self.mix(sources, s_BTD, "self_attention"))
            if isinstance(self.self_attn, DSA):
                a, record.indexing = self.self_attn(x, context, cache, replay_BTk)
            else:
                a = self.self_attn(x, context, cache)
            mixed = a if self.opens_block else s_BTD + a  # a new block's sum starts from the attention output alone
        if stepping and (done := self._feed_forward_step(bank, mixed, record)) is not None:
            return done, bank, record
        x = self.post_attention_layernorm(self.mix(bank, mixed, "mlp"))
        if self.block_sparse_moe is not None:
            y, record.routing = self.block_sparse_moe(x, context.valid_BT, replay_Nk)
        else:
            assert self.mlp is not None
            y = self.mlp(x)
        return mixed + y, bank, record

    def _mixer_step(self, bank: list[Tensor], s: Tensor, context: Context, cache: LayerCache | None) -> Tensor | None:
        """The residual after the mixer in one kernel; None where it cannot be used."""
        module = self.self_attn
        if not (untouched(module, KDA) or untouched(module, MLA)):
            return None
        reading = self._reading("self_attention", self.input_layernorm, bank, s, keeps=not self.opens_block)
        return None if reading is None else module.step(reading, context, cache)  # type: ignore[operator]

    def _feed_forward_step(self, bank: list[Tensor], s: Tensor, record: Record) -> Tensor | None:
        """The residual after the feed-forward in one kernel; None where it cannot be used."""
        reading = self._reading("mlp", self.post_attention_layernorm, bank, s)
        if reading is None:
            return None
        if self.block_sparse_moe is None:
            return self.mlp.step(reading) if untouched(self.mlp, FeedForward) else None  # type: ignore[union-attr]
        found = self.block_sparse_moe.step(reading) if untouched(self.block_sparse_moe, MoE) else None
        if found is None:
            return None
        record.routing = found[1]
        return found[0]

    def _reading(
        self, sublayer: str, norm: RMSNorm, bank: list[Tensor], s: Tensor, keeps: bool = True
    ) -> kernels.Reading | None:
        """What `sublayer` reads, as a fused step takes it; None where its norm was replaced or is watched."""
        if not untouched(norm, RMSNorm):
            return None
        if not bank:
            return kernels.Reading([s], norm.weight, norm.eps, keeps=keeps)
        proj, depth = getattr(self, f"{sublayer}_res_proj"), getattr(self, f"{sublayer}_res_norm")
        return kernels.Reading([*bank, s], norm.weight, norm.eps, proj.weight, depth.weight, depth.eps, keeps)

    def mix(self, bank: list[Tensor], s: Tensor, sublayer: str) -> Tensor:
        """What `sublayer` ("self_attention" or "mlp") reads; with no finished block that is the running sum itself."""
        if not bank:
            return s
        return depth_read(bank, s, getattr(self, f"{sublayer}_res_proj"), getattr(self, f"{sublayer}_res_norm"))
