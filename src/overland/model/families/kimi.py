"""Kimi: Kimi-Linear, Kimi K3 and the K3.1-style variant whose full-attention layers are sparse.

All three say `kimi_linear` in the text part of their config.json, which lists KDA and full-attention layers counting
from 1. Source: the released config.json files; reference/architecture.md §1 and §14.
"""

from __future__ import annotations

from overland.model.config import DecoderConfig
from overland.model.families.codecs import COMMON, layer, layer_count, number, write_dense_first
from overland.model.families.family import Codec, Family, Fields
from overland.model.families.kimi_vision import K3_AROUND, VISION_CODEC, VISION_CONSTANT, VISION_FIELDS, VISION_ONLY

_SHARED = {
    **COMMON,
    "kda.heads": "linear_attn_config.num_heads",
    "kda.head_dim": "linear_attn_config.head_dim",
    "kda.taps": "linear_attn_config.short_conv_kernel_size",
    "mla.heads": "num_attention_heads",
    "mla.q_lora_rank": "q_lora_rank",
    "mla.kv_lora_rank": "kv_lora_rank",
    "mla.nope_dim": "qk_nope_head_dim",
    "mla.rope_dim": "qk_rope_head_dim",
    "mla.value_dim": "v_head_dim",
    "mla.norm_eps": "latent_norm_eps",
    "moe.experts": "num_experts",
    "moe.top_k": "num_experts_per_token",
    "moe.shared": "num_shared_experts",
    "moe.width": "moe_intermediate_size",
    "moe.score": "moe_router_activation_func",
    "moe.renormalize": "moe_renormalize",
    "moe.scale": "routed_scaling_factor",
    "moe.groups": "num_expert_group",
    "moe.top_k_groups": "topk_group",
    "mtp_layers": "num_nextn_predict_layers",
}


def _read_layers(theirs: Fields) -> Fields:
    count, dense = layer_count(theirs), number(theirs, "first_k_dense_replace")
    lists = theirs["linear_attn_config"]
    for name in ("full_attn_layers", "kda_layers"):
        if name not in lists:
            raise KeyError(f"linear_attn_config.{name}")
    full, kda = lists["full_attn_layers"], lists["kda_layers"]
    for name, numbers in (("full_attn_layers", full), ("kda_layers", kda)):
        if not isinstance(numbers, list) or not all(type(n) is int for n in numbers):
            raise ValueError(f"{name} = {numbers!r}; valid: a list of layers, counting from 1")
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"{name} names a layer twice: {sorted(n for n in set(numbers) if numbers.count(n) > 1)}")
    if set(full) & set(kda):
        raise ValueError(f"layers {sorted(set(full) & set(kda))} are in full_attn_layers and in kda_layers")
    if set(full) | set(kda) != set(range(1, count + 1)):
        odd = sorted((set(full) | set(kda)) ^ set(range(1, count + 1)))
        raise ValueError(f"full_attn_layers and kda_layers must cover 1..{count}; wrong: {odd}")
    sparse = (theirs.get("dsa_config") or {}).get("dsa_layers", full if theirs.get("dsa_config") else [])
    if not set(sparse) <= set(full):
        raise ValueError(f"dsa_config.dsa_layers {sorted(set(sparse) - set(full))} are not in full_attn_layers")
    return {
        "layers": [
            layer(
                "kda" if i + 1 in kda else "dsa" if i + 1 in sparse else "mla",
                "dense" if i < dense else "moe",
            )
            for i in range(count)
        ]
    }


def _write_layers(config: DecoderConfig) -> Fields:
    numbered = list(enumerate(config.layers, start=1))
    sparse = [i for i, part in numbered if part.mixer == "dsa"]
    return {
        **write_dense_first(config),
        "linear_attn_config.full_attn_layers": [i for i, part in numbered if part.mixer != "kda"],
        "linear_attn_config.kda_layers": [i for i, part in numbered if part.mixer == "kda"],
        "dsa_config.dsa_layers": sparse or None,
        "num_key_value_heads": config.mla.heads if config.mla else None,
    }


_LAYERS = Codec(
    (
        "linear_attn_config",
        "num_hidden_layers",
        "first_k_dense_replace",
        "num_key_value_heads",
    ),
    _read_layers,
    _write_layers,
)

_ONLY: Fields = {"moe_layer_freq": (1,), "mla_use_nope": (True,), "topk_method": ("noaux_tc",)}
_DEFAULTS: Fields = {
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "latent_norm_eps": 1e-6,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
}
_CONSTANT: Fields = {"moe_layer_freq": 1, "mla_use_nope": True, "topk_method": "noaux_tc", "use_grouped_topk": True}

KIMI_LINEAR = Family(
    name="kimi_linear",
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    fields=_SHARED,
    always={
        "kda.full_rank_gate": False,
        "kda.lower_bound": None,
        "mla.rotate": False,
        "mla.output_gate": False,
        "activation.kind": "swiglu",
    },
    defaults={**_DEFAULTS, "q_lora_rank": None, "max_position_embeddings": 1048576},
    only={**_ONLY, "hidden_act": ("silu",)},
    constant={**_CONSTANT, "hidden_act": "silu"},
    codecs=(_LAYERS,),
    flat_decay=False,
)

KIMI_K3 = Family(
    name="kimi_k3",
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    fields={
        **_SHARED,
        "kda.full_rank_gate": "linear_attn_config.use_full_rank_gate",
        "kda.lower_bound": "linear_attn_config.gate_lower_bound",
        "mla.output_gate": "mla_use_output_gate",
        "moe.latent": "routed_expert_hidden_size",
        "activation.gate_cap": "activation_situ_beta",
        "activation.up_cap": "activation_situ_linear_beta",
        "attn_res_block": "attn_res_block_size",
        "indexer.heads": "dsa_config.num_heads",
        "indexer.head_dim": "dsa_config.head_dim",
        "indexer.topk": "dsa_config.topk",
        "indexer.norm_eps": "dsa_config.k_norm_eps",
        "indexer.rotate": "dsa_config.use_rope",
        **VISION_FIELDS,
    },
    always={"mla.rotate": False, "activation.kind": "situ", "mtp_before_norm": True},
    defaults={
        **_DEFAULTS,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "mla_use_output_gate": True,
        "routed_scaling_factor": 1.0,
        "max_position_embeddings": 4096,
    },
    only={**_ONLY, "hidden_act": ("situ",), "latent_moe_use_norm": (True,), **VISION_ONLY},
    constant={**_CONSTANT, "hidden_act": "situ", "latent_moe_use_norm": True, **VISION_CONSTANT},
    codecs=(_LAYERS, VISION_CODEC),
    around=K3_AROUND,
)
