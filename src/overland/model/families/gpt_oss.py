"""gpt-oss: GQA with sinks, every other layer with a sliding window, experts with biases and a clamped SwiGLU.

Source: openai/gpt-oss config.json and model card; Transformers 5.24.
"""

from __future__ import annotations

from overland.model.config import DecoderConfig
from overland.model.families.codecs import COMMON, layer, layer_count, layer_types, number, rope
from overland.model.families.family import Codec, ExpertNames, Family, Fields


def _read_layers(theirs: Fields) -> Fields:
    count = layer_count(theirs)
    kinds = layer_types(theirs, [("sliding_attention", "full_attention")[i % 2] for i in range(count)])
    window = number(theirs, "sliding_window", 1) if "sliding_attention" in kinds else None
    return {
        "layers": [layer("gqa", "moe", window if kind == "sliding_attention" else None) for kind in kinds],
        "gqa.output_bias": theirs["attention_bias"],
    }


def _write_layers(config: DecoderConfig) -> Fields:
    windows = {part.window for part in config.layers if part.window is not None}
    if len(windows) > 1:
        raise ValueError(f"sliding_window: this family has one, this model has {sorted(windows)}")
    kinds = ["full_attention" if part.window is None else "sliding_attention" for part in config.layers]
    return {
        "num_hidden_layers": config.num_hidden_layers,
        "layer_types": kinds,
        "sliding_window": windows.pop() if windows else None,
    }


GPT_OSS = Family(
    name="gpt_oss",
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    fields={
        **{ours: theirs for ours, theirs in COMMON.items() if ours != "dense_width"},
        "gqa.heads": "num_attention_heads",
        "gqa.kv_heads": "num_key_value_heads",
        "gqa.head_dim": "head_dim",
        "gqa.bias": "attention_bias",
        "moe.experts": "num_local_experts",
        "moe.top_k": "num_experts_per_tok",
        "moe.width": "intermediate_size",
        "activation.alpha": "swiglu_alpha",
        "activation.limit": "swiglu_limit",
    },
    always={
        "activation.kind": "clamped_swiglu",
        "gqa.sinks": True,
        "moe.score": "softmax",
        "moe.renormalize": True,
        "moe.selection_bias": False,
        "moe.bias": True,
    },
    defaults={
        "attention_bias": True,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    only={"hidden_act": ("silu",)},
    constant={"hidden_act": "silu"},
    aliases={"num_experts": "num_local_experts"},
    codecs=(
        Codec(("num_hidden_layers", "layer_types", "sliding_window"), _read_layers, _write_layers),
        rope(150000.0, say_default=True),
    ),
    renames=((r"\.block_sparse_moe\.gate\.", ".mlp.router."),),
    experts=ExpertNames("mlp.experts", "gate_up_proj", "gate_up_proj", "down_proj", fused=True),
)
