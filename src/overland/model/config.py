"""What a K3-family decoder is made of: the fields of the released config.json, checked as a whole.

Source: Kimi-K3 config.json; reference/architecture.md §1.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError, model_validator

from overland.errors import UsageError


class LinearAttentionConfig(BaseModel):
    """KDA's sizes and which layers have it. Layer lists are 1-based, as in the released file."""

    model_config = ConfigDict(extra="allow", frozen=True)

    full_attn_layers: list[int]
    kda_layers: list[int]
    num_heads: PositiveInt
    head_dim: PositiveInt
    short_conv_kernel_size: PositiveInt = 4
    use_full_rank_gate: bool = True
    gate_lower_bound: float = -5.0


class DecoderConfig(BaseModel):
    """The text decoder. Names are those of the released config.json, so that it loads and saves unchanged."""

    model_config = ConfigDict(extra="allow", frozen=True)

    architectures: list[str] = ["KimiLinearForCausalLM"]
    model_type: str = "kimi_linear"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    intermediate_size: PositiveInt
    moe_intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    hidden_act: str = "situ"
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 25.0
    rms_norm_eps: float = 1e-5
    latent_norm_eps: float = 1e-6
    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: NonNegativeInt
    v_head_dim: PositiveInt
    mla_use_nope: bool = True
    mla_use_output_gate: bool = True
    num_experts: PositiveInt
    num_experts_per_token: PositiveInt
    num_shared_experts: PositiveInt
    routed_expert_hidden_size: PositiveInt
    latent_moe_use_norm: bool = True
    moe_renormalize: bool = True
    moe_router_activation_func: str = "sigmoid"
    topk_method: str = "noaux_tc"
    use_grouped_topk: bool = True
    num_expert_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    moe_layer_freq: int = 1
    first_k_dense_replace: NonNegativeInt = 1
    attn_res_block_size: PositiveInt
    max_position_embeddings: PositiveInt = 4096
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    linear_attn_config: LinearAttentionConfig
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> DecoderConfig:
        full, kda = set(self.linear_attn_config.full_attn_layers), set(self.linear_attn_config.kda_layers)
        every = set(range(1, self.num_hidden_layers + 1))
        if full & kda:
            both = sorted(full & kda)
            raise ValueError(f"linear_attn_config: layers {both} are in full_attn_layers and in kda_layers")
        if full | kda != every:
            odd = sorted((full | kda) ^ every)
            raise ValueError(
                f"linear_attn_config: the two layer lists must cover 1..{self.num_hidden_layers}; wrong: {odd}"
            )
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"num_experts_per_token = {self.num_experts_per_token} exceeds num_experts = {self.num_experts}"
            )
        supported = {
            "hidden_act": "situ",
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "latent_moe_use_norm": True,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 1,
            "moe_layer_freq": 1,
            "tie_word_embeddings": False,
        }
        for field, value in supported.items():
            if getattr(self, field) != value:
                raise ValueError(f"{field} = {getattr(self, field)!r} is not a K3 decoder; K3 has {value!r}")
        return self

    def is_full_attention(self, layer: int) -> bool:
        """Whether 0-based `layer` attends over all tokens (MLA); the others are KDA."""
        return layer + 1 in self.linear_attn_config.full_attn_layers

    def is_moe(self, layer: int) -> bool:
        """Whether 0-based `layer` has experts; the first ones are dense."""
        return layer >= self.first_k_dense_replace

    @classmethod
    def from_dict(cls, fields: dict[str, Any], source: str = "config.json") -> DecoderConfig:
        """Check a config.json's content. Raises UsageError naming the first wrong field."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            if where and isinstance(first["input"], str | int | float | None):
                where += f" = {first['input']!r}"
            what = first["msg"].removeprefix("Value error, ")
            raise UsageError(f"{source}: {where}: {what}" if where else f"{source}: {what}") from None
