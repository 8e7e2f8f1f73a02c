"""Named sizes: released models at full size, and small ones that keep K3's structure.

`nano` (about a million parameters used by a token), `micro` (10M in all), `mini` (100M) and `small` (1B) keep K3's
ratios: latent D/2, expert width 6D/14, heads' width 12D/7, a KV latent of D/14, two shared experts, full attention in
every fourth layer and the last; widths are rounded so that what MXFP4 touches is a multiple of 32. K3's share of one
expert in 56 is the one ratio that they cannot keep.
Source: the released config.json files; reference/architecture.md §1 and §14.4.
"""

from __future__ import annotations

from typing import Any

from overland.errors import UsageError
from overland.model.config import DecoderConfig
from overland.model.families.kimi_vision import K3_MEDIA_TOKEN, K3_VISION

NANO: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 640,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 384,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "num_experts": 16,
    "num_experts_per_token": 4,
    "num_shared_experts": 2,
    "routed_expert_hidden_size": 64,
    "attn_res_block_size": 2,
    "max_position_embeddings": 4096,
    "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 4, "head_dim": 32},
}


def _hybrid(layers: int) -> dict[str, list[int]]:
    """K3's order: every fourth layer attends over all tokens, and so does the last."""
    full = sorted({*range(4, layers + 1, 4), layers})
    return {"full_attn_layers": full, "kda_layers": [n for n in range(1, layers + 1) if n not in full]}


_K3_PARTS: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "rms_norm_eps": 1e-5,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "num_shared_experts": 2,
    "latent_moe_use_norm": True,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}

K3: dict[str, Any] = {
    **_K3_PARTS,
    "vocab_size": 163840,
    "hidden_size": 7168,
    "num_hidden_layers": 93,
    "intermediate_size": 33792,
    "moe_intermediate_size": 3072,
    "num_attention_heads": 96,
    "num_key_value_heads": 96,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "routed_expert_hidden_size": 3584,
    "attn_res_block_size": 12,
    "max_position_embeddings": 1048576,
    "linear_attn_config": {**_hybrid(93), "num_heads": 96, "head_dim": 128},
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "pad_token_id": 163839,
}

K3_DSA: dict[str, Any] = {
    **K3,
    "dsa_config": {"num_heads": 32, "head_dim": 128, "topk": 2048, "k_norm_eps": 1e-5, "use_rope": False},
}

MICRO: dict[str, Any] = {
    **_K3_PARTS,
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "intermediate_size": 1216,
    "moe_intermediate_size": 96,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_experts": 16,
    "num_experts_per_token": 4,
    "routed_expert_hidden_size": 128,
    "attn_res_block_size": 2,
    "max_position_embeddings": 131072,
    "linear_attn_config": {**_hybrid(8), "num_heads": 12, "head_dim": 32},
}

MINI: dict[str, Any] = {
    **_K3_PARTS,
    "vocab_size": 8192,
    "hidden_size": 512,
    "num_hidden_layers": 13,
    "intermediate_size": 2432,
    "moe_intermediate_size": 224,
    "num_attention_heads": 14,
    "num_key_value_heads": 14,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "num_experts": 24,
    "num_experts_per_token": 2,
    "routed_expert_hidden_size": 256,
    "attn_res_block_size": 2,
    "max_position_embeddings": 131072,
    "linear_attn_config": {**_hybrid(13), "num_heads": 14, "head_dim": 64},
}

SMALL: dict[str, Any] = {
    **_K3_PARTS,
    "vocab_size": 32768,
    "hidden_size": 1024,
    "num_hidden_layers": 17,
    "intermediate_size": 4832,
    "moe_intermediate_size": 448,
    "num_attention_heads": 14,
    "num_key_value_heads": 14,
    "q_lora_rank": 224,
    "kv_lora_rank": 96,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 64,
    "num_experts_per_token": 2,
    "routed_expert_hidden_size": 512,
    "attn_res_block_size": 2,
    "max_position_embeddings": 131072,
    "linear_attn_config": {**_hybrid(17), "num_heads": 14, "head_dim": 128},
}

KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 163840,
    "hidden_size": 2304,
    "num_hidden_layers": 27,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.446,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 1048576,
    "linear_attn_config": {**_hybrid(27), "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "pad_token_id": 163839,
}

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

DEEPSEEK_V32: dict[str, Any] = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v32",
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

PRESETS: dict[str, dict[str, Any]] = {
    "nano": NANO,
    "micro": MICRO,
    "mini": MINI,
    "small": SMALL,
    "k3": K3,
    "k3-dsa": K3_DSA,
    "kimi-linear-48b-a3b": KIMI_LINEAR,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3.2": DEEPSEEK_V32,
    "mixtral-8x7b": MIXTRAL,
}
"""config.json fields by name, in the layout of the preset's family."""

VISION = {"k3": K3_VISION, "k3-dsa": K3_VISION}
"""vision_config of those presets that take images too."""


def preset(name: str, **changes: object) -> DecoderConfig:
    """A preset's config with some fields of its config.json's text part replaced.

    Raises UsageError for an unknown name.
    """
    if name not in PRESETS:
        raise UsageError(f"model = {name!r} is not a preset; valid: {', '.join(sorted(PRESETS))}")
    fields = {**PRESETS[name], **changes}
    if name in VISION:
        fields = {
            "text_config": fields,
            "vision_config": VISION[name],
            "media_placeholder_token_id": K3_MEDIA_TOKEN,
        }
    return DecoderConfig.from_dict(fields, source=f"preset {name}")
