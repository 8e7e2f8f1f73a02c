"""From a model's config to its Architecture: the public configs of models with measured runs, and K3-family presets.

`models.json` holds the fields of the released config.json files that decide shapes and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from overland.errors import BrokenFileError, UsageError
from overland.parallel.planner import blocks
from overland.parallel.planner.architecture import Architecture, Block, Weight

Fields = dict[str, Any]


def model_names() -> list[str]:
    """Every name that `architecture` knows: public models, and presets of families that the planner has blocks for."""
    from overland.model.presets import PRESETS

    def known(name: str) -> bool:
        try:
            return bool(from_fields(name, PRESETS[name]).layers)
        except UsageError:
            return False

    return sorted({*_public_configs(), *filter(known, PRESETS)})


@cache
def architecture(source: str) -> Architecture:
    """The Architecture of a public model, a preset, or a folder with config.json.

    Names match whatever their case and punctuation. Raises UsageError for an unknown name or a family that the planner
    has no blocks for.
    """
    known = {_plain(name): name for name in _public_configs()}
    name = known.get(_plain(source))
    if name is not None:
        return from_fields(name, _public_configs()[name])
    path = Path(source) / "config.json"
    if path.is_file():
        try:
            return from_fields(source, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise BrokenFileError(f"{path}: cannot be read ({error})") from None
    from overland.model.presets import PRESETS  # last, because it loads torch

    if source in PRESETS:
        return from_fields(source, PRESETS[source])
    names = model_names()
    near = get_close_matches(source.lower(), names, 3, 0.4) or names
    raise UsageError(
        f"--model = {source!r} is neither a folder with config.json nor a known model; nearest: {', '.join(near)}"
    )


def _plain(name: str) -> str:
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(meta|kimi(?=k3))", "", letters).replace("llama31", "llama3").removesuffix("instruct")


def from_fields(name: str, fields: Fields) -> Architecture:
    """The Architecture of a config.json's content."""
    fields = fields.get("text_config", fields)
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise UsageError(f"{name}: model_type = {family!r}; the planner knows: {', '.join(sorted(FAMILIES))}")
    try:
        return FAMILIES[family](name, fields)
    except (KeyError, TypeError) as error:  # a field that this variant does without, as Kimi-Linear's q_lora_rank
        raise UsageError(f"{name}: a variant of {family} that the planner has no blocks for ({error})") from None


def truncated(model: Architecture, layers: int) -> Architecture:
    """The model cut to `layers` layers, its first and its last ones, without MTP: what benchmarks on few GPUs train."""
    if not 1 <= layers <= len(model.layers):
        raise UsageError(f"--layers = {layers} is outside 1..{len(model.layers)}, the layers of {model.name}")
    kept = (model.layers[0], *model.layers[len(model.layers) - layers + 1 :])
    return Architecture(f"{model.name}-{layers}l", model.hidden, model.vocab, kept, model.tied, model.final_vectors)


@cache
def _public_configs() -> dict[str, Fields]:
    return json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))


def _norm(D: int) -> tuple[Weight, ...]:
    return (Weight("norm", (D,), matmul=False),)


def _llama(name: str, c: Fields) -> Architecture:
    D, H = c["hidden_size"], c["num_attention_heads"]
    layer = (
        blocks.gqa(D, H, c["num_key_value_heads"], c.get("head_dim") or D // H),
        blocks.swiglu(D, c["intermediate_size"]),
    )
    tied = bool(c.get("tie_word_embeddings", False))
    return Architecture(name, D, c["vocab_size"], (layer,) * c["num_hidden_layers"], tied, _norm(D))


def _mixtral(name: str, c: Fields) -> Architecture:
    D, H = c["hidden_size"], c["num_attention_heads"]
    layer = (
        blocks.gqa(D, H, c["num_key_value_heads"], c.get("head_dim") or D // H),
        blocks.moe(D, c["num_local_experts"], c["num_experts_per_tok"], c["intermediate_size"]),
    )
    return Architecture(name, D, c["vocab_size"], (layer,) * c["num_hidden_layers"], False, _norm(D))


def _qwen3_moe(name: str, c: Fields) -> Architecture:
    D = c["hidden_size"]
    layer = (
        blocks.gqa(D, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], qk_norm=True),
        blocks.moe(D, c["num_experts"], c["num_experts_per_tok"], c["moe_intermediate_size"]),
    )
    return Architecture(name, D, c["vocab_size"], (layer,) * c["num_hidden_layers"], False, _norm(D))


def _qwen3_next(name: str, c: Fields) -> Architecture:
    D = c["hidden_size"]
    full = blocks.gqa(
        D, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], qk_norm=True, output_gate=True
    )
    linear = blocks.gated_delta(
        D,
        c["linear_num_key_heads"],
        c["linear_num_value_heads"],
        c["linear_key_head_dim"],
        c["linear_value_head_dim"],
        c["linear_conv_kernel_dim"],
    )
    experts = blocks.moe(
        D,
        c["num_experts"],
        c["num_experts_per_tok"],
        c["moe_intermediate_size"],
        shared=c["shared_expert_intermediate_size"],
        shared_gate=True,
    )
    every = c["full_attention_interval"]
    layers = tuple(((full if (l + 1) % every == 0 else linear), experts) for l in range(c["num_hidden_layers"]))
    return Architecture(name, D, c["vocab_size"], layers, False, _norm(D))


def _gpt_oss(name: str, c: Fields) -> Architecture:
    D = c["hidden_size"]
    sizes = D, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    mixers = [blocks.gqa(*sizes, window=window, bias=True, sinks=True) for window in (c["sliding_window"], 0)]
    experts = blocks.moe(
        D,
        c["num_local_experts"],
        c["num_experts_per_tok"],
        c["intermediate_size"],
        router_bias=True,
        expert_bias=True,
    )
    layers = tuple((mixers[l % 2], experts) for l in range(c["num_hidden_layers"]))
    return Architecture(name, D, c["vocab_size"], layers, False, _norm(D))


def _deepseek(name: str, c: Fields) -> Architecture:
    D = c["hidden_size"]
    mixer = _mla(c)
    dense = blocks.swiglu(D, c["intermediate_size"])
    experts = blocks.moe(
        D,
        c["n_routed_experts"],
        c["num_experts_per_tok"],
        c["moe_intermediate_size"],
        shared=c["n_shared_experts"] * c["moe_intermediate_size"],
    )
    first = c["first_k_dense_replace"]
    layers = tuple((mixer, dense if l < first else experts) for l in range(c["num_hidden_layers"]))
    depth = c.get("num_nextn_predict_layers", 0)
    mtp = (blocks.mtp_projection(D), mixer, experts) if depth else ()
    return Architecture(name, D, c["vocab_size"], layers, False, _norm(D), mtp, depth)


def _mla(c: Fields, gate: bool = False) -> Block:
    return blocks.mla(
        c["hidden_size"],
        c["num_attention_heads"],
        c["q_lora_rank"],
        c["kv_lora_rank"],
        c["qk_nope_head_dim"],
        c["qk_rope_head_dim"],
        c["v_head_dim"],
        gate=gate,
    )


def _nemotron_h(name: str, c: Fields) -> Architecture:
    D = c["hidden_size"]
    kinds = {
        "M": blocks.mamba2(
            D, c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"], c["conv_kernel"]
        ),
        "*": blocks.gqa(D, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]),
        "E": blocks.moe(
            D,
            c["n_routed_experts"],
            c["num_experts_per_tok"],
            c["moe_intermediate_size"],
            shared=c["moe_shared_expert_intermediate_size"],
            latent=c.get("moe_latent_size", 0),
            gated=False,
        ),
    }
    layers = tuple((kinds[letter],) for letter in c["pattern"])
    depth = c.get("mtp_depth", 0)
    mtp = tuple(kinds[letter] for letter in c["mtp_pattern"]) if depth else ()
    return Architecture(name, D, c["vocab_size"], layers, False, _norm(D), mtp, depth)


def _kimi_linear(name: str, c: Fields) -> Architecture:
    D, linear = c["hidden_size"], c["linear_attn_config"]
    count = c["num_hidden_layers"]
    full = linear.get("full_attn_layers")
    if full is None:  # K3's rule: every fourth layer and the last
        full = [l for l in range(1, count + 1) if l % linear["full_attention_every"] == 0 or l == count]
    mixers = {
        True: _mla(c, gate=True),
        False: blocks.kda(D, linear["num_heads"], linear["head_dim"], linear.get("short_conv_kernel_size", 4)),
    }
    dense = blocks.swiglu(D, c["intermediate_size"])
    experts = blocks.moe(
        D,
        c["num_experts"],
        c["num_experts_per_token"],
        c["moe_intermediate_size"],
        shared=c["num_shared_experts"] * c["moe_intermediate_size"],
        latent=c["routed_expert_hidden_size"],
        latent_norm=True,
    )
    mixes = blocks.depth_mixes(D)
    layers = tuple(
        (mixers[l + 1 in full], dense if l < c.get("first_k_dense_replace", 1) else experts, mixes)
        for l in range(count)
    )
    shapes = {"output_attn_res_norm": (D,), "output_attn_res_proj": (1, D)}
    ends = (*_norm(D), *(Weight(part, shape, matmul=False) for part, shape in shapes.items()))
    return Architecture(name, D, c["vocab_size"], layers, False, ends)


FAMILIES: dict[str, Callable[[str, Fields], Architecture]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "nemotron_h": _nemotron_h,
    "kimi_linear": _kimi_linear,
}
