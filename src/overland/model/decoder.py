"""The decoder: a stack of layers, each a mixer and a feed-forward, with a residual between them and a head behind.

A plain single-device module: parallel plans, quantisation and compilation are applied from outside.
Shapes: B batch, T tokens, D model, V vocabulary. Source: Kimi K3 report §2; reference/architecture.md §2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from overland import kernels
from overland.errors import UsageError
from overland.model.cache import Cache
from overland.model.config import DecoderConfig
from overland.model.context import Context, IndexerStage, angles, cut
from overland.model.dsa import Indexing
from overland.model.gqa_stack import has_plain_gqa_layers, run_stack
from overland.model.layer import DecoderLayer, DepthProj, Record, depth_read
from overland.model.moe import Routing
from overland.model.mtp import MTP
from overland.model.norm import RMSNorm
from overland.model.packing import Packing
from overland.model.stepping import untouched
from overland.model.vision import Images, Projector, VisionTower

NO_VISION = "images: this model ({family}) has no vision part; valid: images=None, or a model with vision_config"


@dataclass
class Aux:
    """What losses and meters need beside the logits: a Routing per expert layer, an Indexing per sparse one, in order.

    `mtp` holds the logits of the multi-token-prediction blocks, [B, T - 1 - i, V] for block i: position t predicts
    token t + 2 + i.
    """

    router: list[Routing] = field(default_factory=list)
    indexer: list[Indexing] = field(default_factory=list)
    mtp: list[Tensor] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Take in what one layer leaves."""
        if record.routing is not None:
            self.router.append(record.routing)
        if record.indexing is not None:
            self.indexer.append(record.indexing)


@dataclass
class Output:
    """`logits` [B, T, V] and `aux`."""

    logits: Tensor
    aux: Aux


@dataclass
class Replay:
    """Recorded choices, to be used instead of new ones.

    `experts`: ids [N, k], one tensor per expert layer. `selected`: kept keys [B, T, k], one per sparse layer.
    """

    experts: list[Tensor] | None = None
    selected: list[Tensor] | None = None

    def of(self, config: DecoderConfig, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """What was recorded for one layer: expert ids and kept keys, None where there is none."""
        kind, before = config.layers[layer], config.layers[:layer]
        experts = selected = None
        if self.experts is not None and kind.feed_forward == "moe":
            experts = self.experts[sum(other.feed_forward == "moe" for other in before)]
        if self.selected is not None and kind.mixer == "dsa":
            selected = self.selected[sum(other.mixer == "dsa" for other in before)]
        return experts, selected


class Stream(NamedTuple):
    """What leaves the last layer, [B, T, D]: before and after the final norm."""

    raw: Tensor
    normed: Tensor
    aux: Aux


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
        self.mtp = nn.ModuleList(MTP(config) for _ in range(config.mtp_layers))
        self.plain_gqa = has_plain_gqa_layers(config)

    def context(self, input_ids: Tensor, packing: Packing | None, cache: Cache | None) -> Context:
        """Where the tokens stand and what they may see. Raises UsageError beyond max_position_embeddings."""
        B, T = input_ids.shape
        most = self.config.max_position_embeddings
        longest = T if cache is None or T == 0 else T + int(cache.lengths.max())
        if longest > most and packing is not None and packing.lengths is not None:  # without the padding
            longest = int((packing.lengths if cache is None else packing.lengths + cache.lengths).max())
        if longest > most:
            raise UsageError(f"context = {longest} tokens exceeds max_position_embeddings = {most}; send fewer")
        valid_BT = packing.valid(B, T, input_ids.device) if packing else None
        context = Context(packing, cache.lengths if cache else None, None, valid_BT)
        dtype = self.embed_tokens.weight.dtype
        return replace(context, rotary=angles(self.config, context, T, dtype, input_ids.device))

    def forward(self, s_BTD: Tensor, context: Context, cache: Cache | None, replay: Replay | None) -> Stream:
        """`s_BTD`: what stands for the tokens, their embeddings with the images' rows put in."""
        T = s_BTD.shape[1]
        if self.plain_gqa and cache is not None:
            stack = run_stack(self.layers, self.norm, self.config, s_BTD, context, cache)
            if stack is not None:
                self._advance(cache, context, T)
                return Stream(*stack, Aux())
        bank: list[Tensor] = []
        aux = Aux()
        for index, layer in enumerate(self.layers):
            recorded = replay.of(self.config, index) if replay else (None, None)
            s_BTD, bank, record = layer(s_BTD, bank, context, cache.layers[index] if cache else None, *recorded)
            aux.add(record)
        if cache is not None:
            self._advance(cache, context, T)
        if self.config.attn_res_block is not None:
            s_BTD = depth_read(bank, s_BTD, self.output_attn_res_proj, self.output_attn_res_norm)
        return Stream(s_BTD, self.norm(s_BTD), aux)

    @staticmethod
    def _advance(cache: Cache, context: Context, T: int) -> None:
        packing = context.packing
        new = T if packing is None or packing.lengths is None else packing.lengths
        cache.lengths = cache.lengths + new

    def predict_ahead(self, s_BTD: Tensor, stream: Stream, context: Context) -> list[Tensor]:
        """What every multi-token-prediction block leaves for the head, [B, T - 1 - i, D] for block i.

        `s_BTD`: what went into the first layer.
        """
        h_BTD = stream.raw if self.config.mtp_before_norm else stream.normed
        out = []
        for ahead, block in enumerate(self.mtp, start=1):
            e_BTD = s_BTD[:, ahead:]
            kept = cut(context, e_BTD.shape[1])
            h_BTD, record = block(e_BTD, h_BTD[:, : e_BTD.shape[1]], kept)
            stream.aux.add(record)
            out.append(h_BTD)
        return out


class Decoder(nn.Module):
    """The whole model: `model(input_ids)` -> Output with `.logits` [B, T, V]; with a vision part it takes images."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.vision_tower = VisionTower(config.vision) if config.vision is not None else None
        self.mm_projector = Projector(config.vision, config.hidden_size) if config.vision is not None else None

    def forward(
        self,
        input_ids: Tensor,
        *,
        images: Images | Tensor | None = None,
        packing: Packing | None = None,
        cache: Cache | None = None,
        replay: Replay | None = None,
        last_only: bool = False,
        where: Tensor | None = None,
        indexer_stage: IndexerStage | None = None,
        keep_selection: bool = False,
        mtp: bool = False,
    ) -> Output:
        """Run `input_ids` [B, T] int64 and return logits [B, T, V] with what `Aux` records.

        `images` take the places of `media_token_id`, in order: patches, or [M, D] rows that `embed_images` made of them
        (a prompt that runs in pieces is given the rows of each piece). `cache` (from `new_cache`) is read and then
        holds the new tokens too. `last_only` forms the logits of each row's last real token alone, [B, 1, V]: what a
        prefill needs. `where` [B, T] bool forms them at M chosen positions, [M, V] in row order: what a loss over a few
        trained tokens needs. `indexer_stage` asks the sparse layers for their training loss ("dense" also attends to
        everything), `keep_selection` for the keys they kept, `mtp` the multi-token-prediction blocks for their logits
        (without a cache).
        Raises UsageError for a context beyond max_position_embeddings, and images that do not fit model or input.
        """
        context = self.model.context(input_ids, packing, cache)
        context = replace(context, indexer_stage=indexer_stage, keep_selection=keep_selection)
        s_BTD = self.embed(input_ids, images)
        stream = self.model(s_BTD, context, cache, replay)
        if mtp:
            if cache is not None:
                raise ValueError("mtp=True predicts ahead within the tokens of one call; it takes no cache")
            ahead = self.model.predict_ahead(s_BTD, stream, context)
            stream.aux.mtp = [self.lm_head(u_BTD) for u_BTD in ahead]
        h_BTD = stream.normed
        if where is not None:
            return Output(self.lm_head(h_BTD[where]), stream.aux)
        if last_only:
            if packing is None or packing.lengths is None:
                h_BTD = h_BTD[:, -1:]
            else:
                rows = torch.arange(h_BTD.shape[0], device=h_BTD.device)
                h_BTD = h_BTD[rows, packing.lengths - 1][:, None]
        return Output(self._head(h_BTD) if cache is not None else self.lm_head(h_BTD), stream.aux)

    def _head(self, h_BTD: Tensor) -> Tensor:
        """The logits; of bf16 in fp32 where the compiled product runs."""
        head = self.lm_head
        if not torch.is_grad_enabled() and untouched(head, nn.Linear) and kernels.multiplies_bf16(h_BTD, head.weight):
            return kernels.bf16_linear(h_BTD, head.weight)
        return head(h_BTD)

    def embed(self, input_ids: Tensor, images: Images | Tensor | None = None) -> Tensor:
        """[B, T, D]: the tokens' embeddings, and where the token is `media_token_id` the images' rows in order."""
        e_BTD = self.model.embed_tokens(input_ids)
        if images is None:
            return e_BTD
        rows_MD = self.embed_images(images) if isinstance(images, Images) else images
        if self.config.vision is None:
            raise UsageError(NO_VISION.format(family=self.config.family))
        media = self.config.vision.media_token_id
        at_BT = input_ids == media
        if (places := int(at_BT.sum())) != len(rows_MD):
            raise UsageError(
                f"input_ids holds media_token_id = {media} {places} times, the images have {len(rows_MD)} positions; "
                "valid: as many (token_counts says how many an image takes)"
            )
        return e_BTD.masked_scatter(at_BT[..., None], rows_MD.to(e_BTD.dtype))

    def embed_images(self, images: Images) -> Tensor:
        """[M, D]: the images' rows of the decoder's width. Raises UsageError where the model cannot take them in."""
        if self.vision_tower is None or self.mm_projector is None:
            raise UsageError(NO_VISION.format(family=self.config.family))
        return self.mm_projector(self.vision_tower(images))

    def new_cache(self, rows: int) -> Cache:
        """An empty cache for `rows` sequences."""
        layers = [layer.self_attn.new_cache(rows) for layer in self.model.layers]  # type: ignore[union-attr, operator]
        return Cache(layers, torch.zeros(rows, dtype=torch.long, device=self.lm_head.weight.device))
