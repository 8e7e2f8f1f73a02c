"""What a decoder is made of: one section a part, and for every layer the names of its parts.

This is Overland's own form. A released config.json is read and written through a family's mapping (model/families).
Shapes are counts of elements; ranks, heads and widths are named as in the papers.
Source: reference/architecture.md §1; the released configs of each family.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MixerName = Literal["kda", "mla", "dsa", "gqa"]
FeedForwardName = Literal["dense", "moe"]


MOST = 2**31 - 1  # of anything: what is larger is a slip, and would be tried for hours
MOST_LAYERS, MOST_EXPERTS = 10_000, 65_536  # of which every one is made and named
PositiveInt = Annotated[int, Field(strict=True, gt=0, le=MOST)]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """Frozen, and a field that is not known is an error; a number is one, neither NaN nor without end."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LayerConfig(Section):
    """One layer: which mixer, which feed-forward, and how far back GQA looks (None: to the start)."""

    mixer: MixerName
    feed_forward: FeedForwardName
    window: PositiveInt | None = None


class RopeConfig(Section):
    """Rotary positions. `kind` is how frequencies are stretched beyond the `original_context`."""

    theta: Positive
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: Positive = 1.0
    original_context: PositiveInt | None = None
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: Positive | None = None
    truncate: bool = True

    @model_validator(mode="after")
    def _stretched(self) -> RopeConfig:
        if self.kind in ("llama3", "yarn") and self.original_context is None:
            raise ValueError(f"rope type {self.kind!r} needs original_max_position_embeddings")
        return self


class KDAConfig(Section):
    """Kimi Delta Attention. `lower_bound` None is Kimi-Linear's unbounded decay; the gate has full or low rank."""

    heads: PositiveInt
    head_dim: PositiveInt
    taps: PositiveInt = 4
    full_rank_gate: bool = True
    lower_bound: Annotated[float, Field(lt=0)] | None = -5.0


class MLAConfig(Section):
    """Multi-head latent attention. Without `rotate` the rope dims are kept but never rotated (NoPE)."""

    heads: PositiveInt
    q_lora_rank: PositiveInt | None
    kv_lora_rank: PositiveInt
    nope_dim: PositiveInt
    rope_dim: NonNegativeInt
    value_dim: PositiveInt
    norm_eps: Positive = 1e-6
    output_gate: bool = False
    rotate: bool = True
    interleaved: bool = True
    bias: bool = False


class IndexerConfig(Section):
    """The lightning indexer on top of MLA: how many earlier tokens a query attends to, and how they are scored."""

    heads: PositiveInt
    head_dim: PositiveInt
    topk: PositiveInt = 2048
    norm_eps: Positive = 1e-5
    rotate: bool = False


class GQAConfig(Section):
    """Grouped-query attention with rotary positions."""

    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    qk_norm: bool = False
    bias: bool = False
    output_bias: bool = False
    sinks: bool = False

    @model_validator(mode="after")
    def _grouped(self) -> GQAConfig:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"num_key_value_heads = {self.kv_heads} does not divide num_attention_heads = {self.heads}"
            )
        return self


class ActivationConfig(Section):
    """The gated product of a feed-forward: `swiglu`, `situ` with its two caps, or gpt-oss's `clamped_swiglu`."""

    kind: Literal["swiglu", "situ", "clamped_swiglu"] = "swiglu"
    gate_cap: Positive = 4.0
    up_cap: Positive = 25.0
    alpha: float = 1.702
    limit: Positive = 7.0


class MoEConfig(Section):
    """Routed experts, full-width (`latent` None) or in a latent, beside `shared` ones of the same width."""

    experts: Annotated[int, Field(strict=True, gt=0, le=MOST_EXPERTS)]
    top_k: PositiveInt
    width: PositiveInt
    shared: NonNegativeInt = 0
    latent: PositiveInt | None = None
    score: Literal["sigmoid", "softmax"] = "sigmoid"
    renormalize: bool = True
    scale: float = 1.0
    groups: PositiveInt = 1
    top_k_groups: PositiveInt = 1
    selection_bias: bool = True
    bias: bool = False

    @model_validator(mode="after")
    def _chosen(self) -> MoEConfig:
        if self.top_k > self.experts:
            raise ValueError(f"num_experts_per_token = {self.top_k} exceeds num_experts = {self.experts}")
        if self.experts % self.groups:
            raise ValueError(
                f"the number of expert groups = {self.groups} does not divide num_experts = {self.experts}"
            )
        if self.top_k_groups > self.groups:
            raise ValueError(f"topk_group = {self.top_k_groups} exceeds the number of expert groups = {self.groups}")
        if self.top_k_groups * (self.experts // self.groups) < self.top_k:
            raise ValueError(f"topk_group = {self.top_k_groups} groups hold fewer than {self.top_k} experts")
        return self


class VisionConfig(Section):
    """The vision tower and its projector; widths in channels, sides in pixels or patches.

    `grid_height` x `grid_width` learned positions are stretched to each image; `merge` patches (rows, columns) become
    one position of the decoder, where its input has `media_token_id`. `norm_eps` is not in released files: it is what
    the released code's norms take in fp32 (reference/architecture.md §10.5).
    """

    patch: PositiveInt
    grid_height: PositiveInt
    grid_width: PositiveInt
    frames: PositiveInt = 4
    layers: Annotated[int, Field(strict=True, gt=0, le=MOST_LAYERS)]
    width: PositiveInt
    mlp_width: PositiveInt
    heads: PositiveInt
    qkv_width: PositiveInt
    merge: tuple[PositiveInt, PositiveInt] = (2, 2)
    norm_eps: Positive = 1.1920929e-07
    projector_eps: Positive = 1e-5
    media_token_id: NonNegativeInt
    extra: dict[str, Any] = {}

    @model_validator(mode="after")
    def _turning(self) -> VisionConfig:
        if self.qkv_width % (4 * self.heads):
            raise ValueError(
                f"qkv_hidden_size = {self.qkv_width} is not vt_num_attention_heads = {self.heads} times a multiple of 4"
            )
        if self.width % 2:
            raise ValueError(f"vt_hidden_size = {self.width} is not even: sines and cosines share it")
        return self


class DecoderConfig(Section):
    """The whole model. `family` names the mapping that reads and writes it in a released layout.

    `attn_res_block` is the number of layers in a block of attention residuals; None is the standard residual.
    `mtp_layers` counts multi-token-prediction blocks behind the last layer; they read the stream after the final norm,
    or before it. `extra` keeps the released file's other fields, so that they are written back; `around` keeps those
    beside the text part's where there is a vision part too.
    """

    family: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    layers: tuple[LayerConfig, ...]
    dense_width: PositiveInt | None = None
    activation: ActivationConfig = ActivationConfig()
    rms_norm_eps: Positive = 1e-5
    attn_res_block: PositiveInt | None = None
    rope: RopeConfig | None = None
    kda: KDAConfig | None = None
    mla: MLAConfig | None = None
    indexer: IndexerConfig | None = None
    gqa: GQAConfig | None = None
    moe: MoEConfig | None = None
    vision: VisionConfig | None = None
    mlp_bias: bool = False
    mtp_layers: Annotated[int, Field(strict=True, ge=0, le=MOST_LAYERS)] = 0
    mtp_before_norm: bool = False
    max_position_embeddings: PositiveInt = 4096
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    extra: dict[str, Any] = {}
    around: dict[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> DecoderConfig:
        if not self.layers:
            raise ValueError("num_hidden_layers = 0 leaves no layer")
        needs = {"kda": ("kda",), "mla": ("mla",), "dsa": ("mla", "indexer"), "gqa": ("gqa",)}
        for index, layer in enumerate(self.layers):
            for section in needs[layer.mixer]:
                if getattr(self, section) is None:
                    raise ValueError(f"layer {index} has mixer {layer.mixer!r}, but there is no {section} section")
            if layer.feed_forward == "moe" and self.moe is None:
                raise ValueError(f"layer {index} has experts, but there is no moe section")
            if layer.feed_forward == "dense" and self.dense_width is None:
                raise ValueError(f"layer {index} has a dense feed-forward, but there is no intermediate_size")
        if self.indexer is not None and self.mla is not None:
            if self.mla.q_lora_rank is None:
                raise ValueError("q_lora_rank = None: an indexer reads the query latent, so one is needed")
            if self.indexer.rotate and self.mla.rope_dim > self.indexer.head_dim:
                raise ValueError(
                    f"index_head_dim = {self.indexer.head_dim} is smaller than qk_rope_head_dim = {self.mla.rope_dim}"
                )
        if self.rope is None and (self.gqa is not None or (self.mla is not None and self.mla.rotate)):
            raise ValueError("rope_theta is missing: these layers rotate queries and keys")
        if self.vision is not None and self.vision.media_token_id >= self.vocab_size:
            raise ValueError(
                f"media_placeholder_token_id = {self.vision.media_token_id} is not a token; "
                f"valid: 0 to {self.vocab_size - 1} (vocab_size = {self.vocab_size})"
            )
        return self

    @property
    def num_hidden_layers(self) -> int:
        """How many decoder layers there are (multi-token-prediction blocks are not counted)."""
        return len(self.layers)

    @property
    def rope_dim(self) -> int:
        """How many dims of a query or key turn with the position; 0 where none does."""
        if self.gqa is not None:
            return self.gqa.head_dim
        return self.mla.rope_dim if self.mla is not None and self.rope is not None else 0

    def is_moe(self, layer: int) -> bool:
        """Whether 0-based `layer` has experts."""
        return self.layers[layer].feed_forward == "moe"

    def is_full_attention(self, layer: int) -> bool:
        """Whether 0-based `layer` attends over earlier tokens; the others are KDA."""
        return self.layers[layer].mixer != "kda"

    @classmethod
    def from_dict(cls, fields: dict[str, Any], source: str = "config.json") -> DecoderConfig:
        """Read a released config.json's content. Raises UsageError naming the first wrong field."""
        from overland.model.families import read_config

        return read_config(fields, source)

    def to_dict(self) -> dict[str, Any]:
        """The content of a config.json in the family's released layout."""
        from overland.model.families import write_config

        return write_config(self)
