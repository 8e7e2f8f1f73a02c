"""The K3 decoder: KDA and gated-MLA mixers, dense or latent-expert feed-forwards, attention residuals between them.

A plain single-device module: parallel plans, quantisation and compilation are applied from outside.
Shapes: B batch, T tokens, D model, V vocabulary. Source: Kimi K3 report §2; reference/architecture.md §2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from overland.model.attnres import depth_mix
from overland.model.cache import Cache, KDACache, MLACache
from overland.model.config import DecoderConfig
from overland.model.feed_forward import FeedForward
from overland.model.kda import KDA
from overland.model.mla import MLA
from overland.model.moe import LatentMoE, Routing
from overland.model.norm import RMSNorm
from overland.model.packing import Packing


@dataclass
class Aux:
    """What losses and meters need beside the logits: one Routing per expert layer, in layer order."""

    router: list[Routing] = field(default_factory=list)


@dataclass
class Output:
    """`logits` [B, T, V] and `aux`."""

    logits: Tensor
    aux: Aux


@dataclass
class Replay:
    """Recorded expert ids, one [N, k] tensor per expert layer, to be used instead of the router's choice."""

    experts: list[Tensor]


class DepthProj(nn.Module):
    """One pseudo-query over depth [1, D]; zero is the plain average."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size))


class DecoderLayer(nn.Module):
    """A mixer and a feed-forward, each reading a depth mix of its own."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        D, eps = config.hidden_size, config.rms_norm_eps
        self.opens_block = layer % config.attn_res_block_size == 0
        self.self_attn: KDA | MLA = MLA(config) if config.is_full_attention(layer) else KDA(config)
        self.mlp: FeedForward | None = None
        self.block_sparse_moe: LatentMoE | None = None
        if config.is_moe(layer):
            self.block_sparse_moe = LatentMoE(config)
        else:
            caps = config.activation_situ_beta, config.activation_situ_linear_beta
            self.mlp = FeedForward(D, config.intermediate_size, *caps)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(D, eps), RMSNorm(D, eps)
        self.self_attention_res_norm, self.mlp_res_norm = RMSNorm(D, eps), RMSNorm(D, eps)
        self.self_attention_res_proj, self.mlp_res_proj = DepthProj(D), DepthProj(D)
        self.eps = eps

    def mix(self, bank: list[Tensor], s: Tensor, sublayer: str) -> Tensor:
        """What `sublayer` ("self_attention" or "mlp") reads: an average of the finished blocks and the running sum."""
        proj, norm = getattr(self, f"{sublayer}_res_proj"), getattr(self, f"{sublayer}_res_norm")
        return depth_mix([*bank, s], proj.weight, norm.weight, self.eps)


class DecoderModel(nn.Module):
    """Everything below the output head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        D = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, D)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.output_attn_res_norm, self.norm = RMSNorm(D, config.rms_norm_eps), RMSNorm(D, config.rms_norm_eps)
        self.output_attn_res_proj = DepthProj(D)
        self.eps = config.rms_norm_eps

    def forward(
        self, input_ids: Tensor, packing: Packing | None, cache: Cache | None, replay: Replay | None
    ) -> tuple[Tensor, Aux]:
        aux = Aux()
        valid = packing.valid(input_ids.shape[0], input_ids.shape[1], input_ids.device) if packing else None
        bank: list[Tensor] = []
        s = self.embed_tokens(input_ids)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            h = layer.mix(bank, s, "self_attention") if bank else s
            if layer.opens_block:
                bank = [*bank, s]
            a = self._attend(layer, layer.input_layernorm(h), packing, cache, index)
            s = a if layer.opens_block else s + a  # a new block's sum starts from the attention output alone
            x = layer.post_attention_layernorm(layer.mix(bank, s, "mlp"))
            if layer.block_sparse_moe is not None:
                y, routing = layer.block_sparse_moe(x, valid, replay.experts[len(aux.router)] if replay else None)
                aux.router.append(routing)
            else:
                assert layer.mlp is not None
                y = layer.mlp(x)
            s = s + y
        if cache is not None:
            new = input_ids.shape[1] if packing is None or packing.lengths is None else packing.lengths
            cache.lengths = cache.lengths + new
        h = depth_mix([*bank, s], self.output_attn_res_proj.weight, self.output_attn_res_norm.weight, self.eps)
        return self.norm(h), aux

    @staticmethod
    def _attend(layer: DecoderLayer, x: Tensor, packing: Packing | None, cache: Cache | None, index: int) -> Tensor:
        own = cache.layers[index] if cache else None
        if isinstance(layer.self_attn, MLA):
            assert own is None or isinstance(own, MLACache)
            return layer.self_attn(x, packing, own, cache.lengths if cache else None)
        assert own is None or isinstance(own, KDACache)
        return layer.self_attn(x, packing, own)


class Decoder(nn.Module):
    """The whole text model: `model(input_ids)` -> Output with `.logits` [B, T, V]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        *,
        packing: Packing | None = None,
        cache: Cache | None = None,
        replay: Replay | None = None,
        last_only: bool = False,
        where: Tensor | None = None,
    ) -> Output:
        """Run `input_ids` [B, T] int64 and return logits [B, T, V] with the routing record.

        `cache` (from `new_cache`) is read and then holds the new tokens too. `last_only` forms the logits of each
        row's last real token alone, [B, 1, V]: what a prefill needs. `where` [B, T] bool forms them at M chosen
        positions, [M, V] in row order: what a loss over a few trained tokens needs.
        """
        h_BTD, aux = self.model(input_ids, packing, cache, replay)
        if where is not None:
            return Output(self.lm_head(h_BTD[where]), aux)
        if last_only:
            if packing is None or packing.lengths is None:
                h_BTD = h_BTD[:, -1:]
            else:
                rows = torch.arange(h_BTD.shape[0], device=h_BTD.device)
                h_BTD = h_BTD[rows, packing.lengths - 1][:, None]
        return Output(self.lm_head(h_BTD), aux)

    def new_cache(self, rows: int) -> Cache:
        """An empty cache for `rows` sequences."""
        layers = [layer.self_attn.new_cache(rows) for layer in self.model.layers]  # type: ignore[union-attr, operator]
        return Cache(layers, torch.zeros(rows, dtype=torch.long, device=self.lm_head.weight.device))
