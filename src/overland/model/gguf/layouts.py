"""Which families llama.cpp knows, and what our config is called in its files' metadata.

A layout refuses what its architecture in llama.cpp would compute otherwise, before anything is written.
Source: llama.cpp's model files and converters (kimi-k3, kimi-linear, llama, qwen3, qwen3moe), October 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overland.errors import UsageError
from overland.model.config import DecoderConfig, GQAConfig, KDAConfig, MLAConfig, MoEConfig

Metadata = dict[str, int | float | bool | str | list[int] | list[str]]
SIGMOID = 2  # llama.cpp's number for the router's score


@dataclass(frozen=True)
class Layout:
    """One architecture of llama.cpp.

    `metadata` gives the keys below the architecture's name, `problems` what of a model it would get wrong.
    `interleaved`: its rotary dims lie in pairs, where ours lie in halves. `column_decay`: A_log is [H, 1], not [H].
    `reuses_embedding`: an output matrix that is tied to the embedding is left out.
    """

    architecture: str
    metadata: Callable[[DecoderConfig], Metadata]
    problems: Callable[[DecoderConfig], list[str]]
    interleaved: bool = False
    column_decay: bool = False
    reuses_embedding: bool = True


def layout_of(config: DecoderConfig) -> Layout:
    """The layout of a model. Raises UsageError with the reason where llama.cpp cannot run it as it is."""
    if config.family not in LAYOUTS:
        raise UsageError(f"family = {config.family!r} is not written as GGUF; valid: {', '.join(LAYOUTS)}")
    layout = LAYOUTS[config.family]
    problems = layout.problems(config)
    if problems:
        raise UsageError(f"llama.cpp's {layout.architecture} cannot run this model: {'; '.join(problems)}")
    return layout


def _common(config: DecoderConfig) -> Metadata:
    width = config.dense_width or (config.moe.width if config.moe else 0)
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": width,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }


# --- Kimi: KDA and latent attention -------------------------------------------------------------------------------


def _kimi_parts(config: DecoderConfig) -> tuple[KDAConfig, MLAConfig, MoEConfig]:
    assert config.kda is not None
    assert config.mla is not None
    assert config.moe is not None
    return config.kda, config.mla, config.moe


def _kimi(config: DecoderConfig) -> Metadata:
    """llama.cpp keeps latents (multi-query attention over them), and tells a KDA layer by its having no KV head."""
    kda, mla, moe = _kimi_parts(config)
    return {
        **_common(config),
        "attention.head_count": mla.heads,
        "attention.head_count_kv": [int(config.is_full_attention(i)) for i in range(config.num_hidden_layers)],
        **({"attention.q_lora_rank": mla.q_lora_rank} if mla.q_lora_rank is not None else {}),
        "attention.kv_lora_rank": mla.kv_lora_rank,
        "attention.key_length": mla.kv_lora_rank + mla.rope_dim,
        "attention.value_length": mla.kv_lora_rank,
        "attention.key_length_mla": mla.nope_dim + mla.rope_dim,
        "attention.value_length_mla": mla.value_dim,
        "rope.dimension_count": mla.rope_dim,
        "ssm.conv_kernel": kda.taps,
        "kda.head_dim": kda.head_dim,
        "leading_dense_block_count": sum(layer.feed_forward == "dense" for layer in config.layers),
        "expert_count": moe.experts,
        "expert_used_count": moe.top_k,
        "expert_shared_count": moe.shared,
        "expert_feed_forward_length": moe.width,
        "expert_weights_scale": moe.scale,
        "expert_weights_norm": moe.renormalize,
        "expert_gating_func": SIGMOID,
    }


def _kimi_problems(config: DecoderConfig) -> list[str]:
    if config.kda is None or config.mla is None or config.moe is None:
        return ["it needs KDA layers, latent attention and experts"]
    kda, mla, moe = _kimi_parts(config)
    kinds = [layer.feed_forward for layer in config.layers]
    return _held(
        (
            all(layer.mixer != "dsa" for layer in config.layers),
            "it attends to everything, and the layers with an indexer (dsa_config) would not",
        ),
        (kda.heads == mla.heads, f"KDA has {kda.heads} heads and attention {mla.heads}, where it has one number"),
        (not mla.bias and not mla.rotate, "attention has biases or turns with the position"),
        (moe.score == "sigmoid", f"the router's score is {moe.score}, not sigmoid"),
        (moe.groups == 1, f"experts are chosen within {moe.groups} groups"),
        (moe.selection_bias and not moe.bias, "experts lack a selection bias, or have biases"),
        (kinds == sorted(kinds), "dense layers come after layers with experts"),
    )


def _k3(config: DecoderConfig) -> Metadata:
    kda, _, moe = _kimi_parts(config)
    return {
        **_kimi(config),
        **({"kda.gate_lower_bound": kda.lower_bound} if kda.lower_bound is not None else {}),
        **({"expert_latent_length": moe.latent} if moe.latent is not None else {}),
        "attn_res.block_size": config.attn_res_block or 0,
        "activation.situ_beta": config.activation.gate_cap,
        "activation.situ_linear_beta": config.activation.up_cap,
    }


def _k3_problems(config: DecoderConfig) -> list[str]:
    return _kimi_problems(config) + _held(
        (config.kda is None or config.kda.full_rank_gate, "KDA's output gate has low rank"),
        (config.activation.kind == "situ", f"the activation is {config.activation.kind}, not SiTU"),
    )


def _kimi_linear_problems(config: DecoderConfig) -> list[str]:
    moe = config.moe
    return _kimi_problems(config) + _held(
        (moe is None or moe.renormalize, "the weights of chosen experts are not renormalised"),
        (moe is None or moe.latent is None, "experts work in a latent"),
    )


# --- Grouped-query attention --------------------------------------------------------------------------------------


def _gqa_of(config: DecoderConfig) -> GQAConfig:
    assert config.gqa is not None
    return config.gqa


def _gqa(config: DecoderConfig) -> Metadata:
    gqa, rope, moe = _gqa_of(config), config.rope, config.moe
    assert rope is not None
    out: Metadata = {
        **_common(config),
        "attention.head_count": gqa.heads,
        "attention.head_count_kv": gqa.kv_heads,
        "attention.key_length": gqa.head_dim,
        "attention.value_length": gqa.head_dim,
        "rope.dimension_count": gqa.head_dim,
        "rope.freq_base": rope.theta,
    }
    if rope.kind in ("linear", "yarn"):
        out |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": rope.factor}
    if rope.kind == "yarn":
        out |= {
            "rope.scaling.original_context_length": rope.original_context or config.max_position_embeddings,
            "rope.scaling.yarn_beta_fast": rope.beta_fast,
            "rope.scaling.yarn_beta_slow": rope.beta_slow,
        }
    if moe is not None:
        out |= {
            "expert_count": moe.experts,
            "expert_used_count": moe.top_k,
            "expert_feed_forward_length": moe.width,
        }
    return out


def _gqa_problems(config: DecoderConfig) -> list[str]:
    gqa, rope, moe = _gqa_of(config), config.rope, config.moe
    assert rope is not None
    plain = rope.attention_factor is None and rope.mscale is None and rope.mscale_all_dim is None and rope.truncate
    return _held(
        (all(layer.window is None for layer in config.layers), "some layers have a sliding window"),
        (not gqa.sinks, "attention has sinks"),
        (rope.kind != "yarn" or plain, "YaRN has an attention factor or ends of its own"),
        (moe is None or moe.renormalize, "the weights of chosen experts are not renormalised"),
        (
            moe is None or all(layer.feed_forward == "moe" for layer in config.layers),
            "some layers are dense and some have experts",
        ),
    )


def _held(*conditions: tuple[bool, str]) -> list[str]:
    """What is said of the conditions that do not hold."""
    return [problem for holds, problem in conditions if not holds]


LAYOUTS = {
    "kimi_k3": Layout("kimi-k3", _k3, _k3_problems, reuses_embedding=False),
    "kimi_linear": Layout("kimi-linear", _kimi, _kimi_linear_problems, column_decay=True, reuses_embedding=False),
    "llama": Layout("llama", _gqa, _gqa_problems, interleaved=True),
    "mixtral": Layout("llama", _gqa, _gqa_problems, interleaved=True),
    "qwen3": Layout("qwen3", _gqa, _gqa_problems),
    "qwen3_moe": Layout("qwen3moe", _gqa, _gqa_problems),
}
