"""Named sizes. `nano` keeps K3's structure at about a million parameters, for a laptop.

K3's ratios (latent D/2, expert width 6D/14, heads' width 12D/7, a KV latent of D/14) are rounded so that every width
that MXFP4 or a head touches is a multiple of 32.
"""

from __future__ import annotations

from typing import Any

from overland.errors import UsageError
from overland.model.config import DecoderConfig

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

PRESETS: dict[str, dict[str, Any]] = {"nano": NANO}
"""config.json fields by name, in the layout of the preset's family."""


def preset(name: str, **changes: object) -> DecoderConfig:
    """A preset's config with some fields of its config.json replaced. Raises UsageError for an unknown name."""
    if name not in PRESETS:
        raise UsageError(f"model = {name!r} is not a preset; valid: {', '.join(sorted(PRESETS))}")
    return DecoderConfig.from_dict({**PRESETS[name], **changes}, source=f"preset {name}")
