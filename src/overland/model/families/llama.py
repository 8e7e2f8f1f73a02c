"""Llama and its relatives with grouped-query attention: Llama (SmolLM2 too), Qwen3, Qwen3-MoE and Mixtral.

Source: the released config.json files; Transformers 5.24.
"""

from __future__ import annotations

from overland.model.config import DecoderConfig
from overland.model.families.codecs import COMMON, layer, layer_count, layer_types, number, rope, uniform
from overland.model.families.family import Codec, ExpertNames, Family, Fields

_GQA = {**COMMON, "gqa.heads": "num_attention_heads", "gqa.bias": "attention_bias"}


def _read_heads(theirs: Fields) -> Fields:
    heads, width = number(theirs, "num_attention_heads", 1), number(theirs, "hidden_size", 1)
    return {
        "gqa.kv_heads": heads if theirs.get("num_key_value_heads") is None else theirs["num_key_value_heads"],
        "gqa.head_dim": width // heads if theirs.get("head_dim") is None else theirs["head_dim"],
        "gqa.output_bias": theirs.get("attention_bias", False),
    }


def _write_heads(config: DecoderConfig) -> Fields:
    assert config.gqa is not None
    return {"num_key_value_heads": config.gqa.kv_heads, "head_dim": config.gqa.head_dim}


_HEADS = Codec(
    ("num_key_value_heads", "head_dim"),
    _read_heads,
    _write_heads,
    {"gqa.kv_heads": "num_key_value_heads", "gqa.head_dim": "head_dim"},
)

LLAMA = Family(
    name="llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    fields={**_GQA, "mlp_bias": "mlp_bias"},
    always={"activation.kind": "swiglu"},
    defaults={"attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    only={"hidden_act": ("silu",), "pretraining_tp": (1,)},
    constant={"hidden_act": "silu"},
    codecs=(uniform("gqa", "dense"), _HEADS, rope()),
)


def _read_qwen3_layers(theirs: Fields) -> Fields:
    count, window = layer_count(theirs), theirs.get("sliding_window")
    first = theirs.get("max_window_layers", 28) if theirs.get("use_sliding_window") and window else count
    otherwise = ["full_attention"] * min(first, count) + ["sliding_attention"] * (count - first)
    kinds = layer_types(theirs, otherwise)
    if "sliding_attention" in kinds:
        window = number(theirs, "sliding_window", 1)
    return {"layers": [layer("gqa", "dense", window if kind == "sliding_attention" else None) for kind in kinds]}


def _write_qwen3_layers(config: DecoderConfig) -> Fields:
    windows = {part.window for part in config.layers if part.window is not None}
    if len(windows) > 1:
        raise ValueError(f"sliding_window: this family has one, this model has {sorted(windows)}")
    kinds = ["full_attention" if part.window is None else "sliding_attention" for part in config.layers]
    return {
        "num_hidden_layers": config.num_hidden_layers,
        "use_sliding_window": bool(windows),
        "sliding_window": windows.pop() if windows else None,
        "layer_types": kinds,
    }


_QWEN3_LAYERS = Codec(
    ("layer_types", "num_hidden_layers", "use_sliding_window", "sliding_window", "max_window_layers"),
    _read_qwen3_layers,
    _write_qwen3_layers,
)

QWEN3 = Family(
    name="qwen3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fields=_GQA,
    always={"activation.kind": "swiglu", "gqa.qk_norm": True},
    defaults={"attention_bias": False, "rms_norm_eps": 1e-6, "head_dim": 128, "max_position_embeddings": 32768},
    only={"hidden_act": ("silu",)},
    constant={"hidden_act": "silu"},
    codecs=(_QWEN3_LAYERS, _HEADS, rope()),
)


def _read_sparse_steps(theirs: Fields) -> Fields:
    step, count, dense = number(theirs, "decoder_sparse_step", 1), layer_count(theirs), theirs["mlp_only_layers"] or []
    if not isinstance(dense, list) or not all(i in range(count) for i in dense):
        raise ValueError(f"mlp_only_layers = {dense!r}; valid: a list of layers from 0 to {count - 1}")
    window = theirs.get("sliding_window") if theirs.get("use_sliding_window") else None
    kinds = ["moe" if i not in dense and (i + 1) % step == 0 else "dense" for i in range(count)]
    return {"layers": [layer("gqa", kind, window) for kind in kinds]}


def _write_sparse_steps(config: DecoderConfig) -> Fields:
    window = config.layers[0].window
    return {
        "num_hidden_layers": config.num_hidden_layers,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i in range(config.num_hidden_layers) if not config.is_moe(i)],
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


_SPARSE_STEPS = Codec(
    ("num_hidden_layers", "decoder_sparse_step", "mlp_only_layers", "use_sliding_window", "sliding_window"),
    _read_sparse_steps,
    _write_sparse_steps,
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    fields={
        **_GQA,
        "moe.experts": "num_experts",
        "moe.top_k": "num_experts_per_tok",
        "moe.width": "moe_intermediate_size",
        "moe.renormalize": "norm_topk_prob",
    },
    always={"activation.kind": "swiglu", "gqa.qk_norm": True, "moe.score": "softmax", "moe.selection_bias": False},
    defaults={
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 32768,
    },
    only={"hidden_act": ("silu",)},
    constant={"hidden_act": "silu"},
    aliases={"num_local_experts": "num_experts"},
    codecs=(_SPARSE_STEPS, _HEADS, rope()),
    renames=((r"\.block_sparse_moe\.", ".mlp."),),
    experts=ExpertNames("mlp.experts", "gate_proj", "up_proj", "down_proj"),
)


def _read_mixtral_layers(theirs: Fields) -> Fields:
    return {"layers": [layer("gqa", "moe", theirs.get("sliding_window")) for _ in range(layer_count(theirs))]}


def _write_mixtral_layers(config: DecoderConfig) -> Fields:
    return {"num_hidden_layers": config.num_hidden_layers, "sliding_window": config.layers[0].window}


MIXTRAL = Family(
    name="mixtral",
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    fields={
        **{ours: theirs for ours, theirs in _GQA.items() if ours not in ("dense_width", "gqa.bias")},
        "moe.experts": "num_local_experts",
        "moe.top_k": "num_experts_per_tok",
        "moe.width": "intermediate_size",
    },
    always={"activation.kind": "swiglu", "moe.score": "softmax", "moe.renormalize": True, "moe.selection_bias": False},
    defaults={"max_position_embeddings": 131072},
    only={"hidden_act": ("silu",)},
    constant={"hidden_act": "silu"},
    aliases={"num_experts": "num_local_experts"},
    codecs=(
        Codec(("num_hidden_layers", "sliding_window"), _read_mixtral_layers, _write_mixtral_layers),
        _HEADS,
        rope(1e6),
    ),
)
