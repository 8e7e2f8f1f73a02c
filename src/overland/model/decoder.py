"""The decoder: a stack of layers, each a mixer and a feed-forward, with a residual between them and a head behind.

A plain single-device module: parallel plans, quantisation and compilation are applied from outside.
Shapes: B batch, T tokens, D model, V vocabulary. Source: Kimi K3 report §2; reference/architecture.md §2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from overland.model.cache import Cache
from overland.model.config import DecoderConfig
from overland.model.context import Context, angles
from overland.model.layer import DecoderLayer, DepthProj, depth_read
from overland.model.moe import Routing
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


class DecoderModel(nn.Module):
    """Everything below the output head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        D, eps = config.hidden_size, config.rms_norm_eps
        self.config, self.eps = config, eps
        self.embed_tokens = nn.Embedding(config.vocab_size, D)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        if config.attn_res_block is not None:
            self.output_attn_res_norm, self.output_attn_res_proj = RMSNorm(D, eps), DepthProj(D)
        self.norm = RMSNorm(D, eps)

    def forward(
        self, input_ids: Tensor, packing: Packing | None, cache: Cache | None, replay: Replay | None
    ) -> tuple[Tensor, Aux]:
        B, T = input_ids.shape
        s_BTD = self.embed_tokens(input_ids)
        valid_BT = packing.valid(B, T, input_ids.device) if packing else None
        context = Context(packing, cache.lengths if cache else None, None, valid_BT)
        context = replace(context, rotary=angles(self.config, context, T, s_BTD.dtype, input_ids.device))
        bank: list[Tensor] = []
        aux = Aux()
        for index, layer in enumerate(self.layers):
            recorded = replay.experts[len(aux.router)] if replay and self.config.is_moe(index) else None
            own = cache.layers[index] if cache else None
            s_BTD, bank, record = layer(s_BTD, bank, context, own, recorded)
            if record.routing is not None:
                aux.router.append(record.routing)
        if cache is not None:
            new = T if packing is None or packing.lengths is None else packing.lengths
            cache.lengths = cache.lengths + new
        if self.config.attn_res_block is not None:
            s_BTD = depth_read(bank, s_BTD, self.output_attn_res_proj, self.output_attn_res_norm)
        return self.norm(s_BTD), aux


class Decoder(nn.Module):
    """The whole text model: `model(input_ids)` -> Output with `.logits` [B, T, V]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

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
