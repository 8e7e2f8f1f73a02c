"""The parts of released configs that are more than a renamed field: layer lists and rotary positions."""

from __future__ import annotations

from typing import Any

from overland.model.config import MOST_LAYERS, DecoderConfig
from overland.model.families.family import Codec, Fields

COMMON = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "dense_width": "intermediate_size",
    "rms_norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tie_word_embeddings",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
"""What every family calls the same."""


def layer(mixer: str, feed_forward: str, window: int | None = None) -> Fields:
    """One entry of DecoderConfig.layers."""
    return {"mixer": mixer, "feed_forward": feed_forward, "window": window}


def uniform(mixer: str, feed_forward: str) -> Codec:
    """All layers alike."""
    return Codec(
        ("num_hidden_layers",),
        lambda theirs: {"layers": [layer(mixer, feed_forward) for _ in range(layer_count(theirs))]},
        lambda config: {"num_hidden_layers": config.num_hidden_layers},
    )


def dense_first(mixer: str) -> Codec:
    """`first_k_dense_replace` dense layers, then experts."""

    def read(theirs: Fields) -> Fields:
        dense = number(theirs, "first_k_dense_replace")
        return {"layers": [layer(mixer, "dense" if i < dense else "moe") for i in range(layer_count(theirs))]}

    return Codec(("num_hidden_layers", "first_k_dense_replace"), read, write_dense_first)


def write_dense_first(config: DecoderConfig) -> Fields:
    """num_hidden_layers and first_k_dense_replace. Raises ValueError where dense layers come after experts."""
    kinds = [layer.feed_forward for layer in config.layers]
    dense = kinds.index("moe") if "moe" in kinds else len(kinds)
    if "dense" in kinds[dense:]:
        raise ValueError("first_k_dense_replace: this family has its dense layers first, this model has not")
    return {"num_hidden_layers": len(kinds), "first_k_dense_replace": dense}


def layer_count(theirs: Fields) -> int:
    """How many layers a config.json has. Raises ValueError for what is no number of layers."""
    count = theirs["num_hidden_layers"]
    if type(count) is not int or not 1 <= count <= MOST_LAYERS:
        raise ValueError(f"num_hidden_layers = {count!r} is not a number of layers; valid: 1 to {MOST_LAYERS}")
    return count


def layer_types(theirs: Fields, otherwise: list[str]) -> list[str]:
    """Which layers look back how far; `otherwise` where the file does not say. Raises ValueError for other kinds."""
    kinds, valid = theirs.get("layer_types") or otherwise, ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layer_count(theirs):
        said = f"names {len(kinds)} layers" if isinstance(kinds, list) else f"= {kinds!r} is no list"
        raise ValueError(f"layer_types {said}, num_hidden_layers is {theirs['num_hidden_layers']}")
    for at, kind in enumerate(kinds):
        if kind not in valid:
            raise ValueError(f"layer_types[{at}] = {kind!r}; valid: {', '.join(valid)}")
    return kinds


def number(theirs: Fields, name: str, least: int = 0) -> int:
    """A whole number of a config.json. Raises ValueError for anything else, or one below `least`."""
    value = theirs[name]
    if type(value) is not int or value < least:
        raise ValueError(f"{name} = {value!r}; valid: a whole number from {least}")
    return value


ROPE_FIELDS = {
    "factor": "factor",
    "original_context": "original_max_position_embeddings",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "attention_factor": "attention_factor",
    "truncate": "truncate",
}
USED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_context", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor",
        "original_context",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
    ),
}


def rope(default_theta: float = 10000.0, say_default: bool = False) -> Codec:
    """`rope_theta` and `rope_scaling`, as released files have them; Transformers 5's `rope_parameters` is read too.

    `say_default`: plain positions are written out, because the family's files are stretched when they say nothing.
    """

    def read(theirs: Fields) -> Fields:
        stretched = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
        if not isinstance(stretched, dict):
            raise ValueError(f"rope_scaling = {stretched!r}; valid: null, or an object with a rope_type")
        kind = stretched.get("rope_type", stretched.get("type", "default"))
        if kind not in USED:
            raise ValueError(f"rope type = {kind!r} is not supported; valid: {', '.join(USED)}")
        theta = theirs.get("rope_theta")
        ours: Fields = {
            "rope.theta": stretched.get("rope_theta", default_theta if theta is None else theta),
            "rope.kind": kind,
        }
        for name in USED[kind]:
            value = stretched.get(ROPE_FIELDS[name])
            if value is not None:
                ours[f"rope.{name}"] = value
        if "original_context" in USED[kind]:
            ours.setdefault("rope.original_context", theirs.get("max_position_embeddings"))
        return ours

    def write(config: DecoderConfig) -> Fields:
        assert config.rope is not None
        used = {ROPE_FIELDS[name]: getattr(config.rope, name) for name in USED[config.rope.kind]}
        scaling = {"rope_type": config.rope.kind, **{k: v for k, v in used.items() if v is not None}}
        return {"rope_theta": config.rope.theta, "rope_scaling": scaling if used or say_default else None}

    called = {f"rope.{ours}": f"rope_scaling.{theirs}" for ours, theirs in ROPE_FIELDS.items()}
    return Codec(("rope_scaling", "rope_theta", "rope_parameters"), read, write, {**called, "rope.theta": "rope_theta"})


def window_of(theirs: Fields, sliding: bool) -> Any:
    """The sliding window of a layer that has one."""
    return theirs.get("sliding_window") if sliding else None
