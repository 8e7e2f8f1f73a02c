"""Which families there are, and which one a config.json belongs to."""

from __future__ import annotations

import difflib
from typing import Any

from overland.errors import UsageError
from overland.model.config import DecoderConfig
from overland.model.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V32
from overland.model.families.family import Family
from overland.model.families.gpt_oss import GPT_OSS
from overland.model.families.kimi import KIMI_K3, KIMI_LINEAR
from overland.model.families.llama import LLAMA, MIXTRAL, QWEN3, QWEN3_MOE

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        KIMI_K3,
        KIMI_LINEAR,
        DEEPSEEK_V3,
        DEEPSEEK_V32,
        MIXTRAL,
        QWEN3,
        QWEN3_MOE,
        LLAMA,
        GPT_OSS,
    )
}


def family_of(fields: dict[str, Any], source: str) -> Family:
    """The family of a config.json's text part. Raises UsageError naming an unknown model_type.

    K3 and Kimi-Linear share the model type `kimi_linear`; K3 is the one with attention residuals or latent experts.
    A file without a model type is K3's own, if it has KDA layers.
    """
    if "model_type" not in fields and "linear_attn_config" not in fields:
        known = sorted({family.model_type for family in FAMILIES.values()})
        raise UsageError(f"{source}: model_type is missing; valid: {', '.join(known)}")
    kind = fields.get("model_type", "kimi_linear")
    if kind == "kimi_linear":
        return KIMI_K3 if {"attn_res_block_size", "routed_expert_hidden_size"} & fields.keys() else KIMI_LINEAR
    for family in FAMILIES.values():
        if family.model_type == kind:
            return family
    known = sorted({family.model_type for family in FAMILIES.values()})
    close = difflib.get_close_matches(str(kind), known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UsageError(f"{source}: model_type = {kind!r} is not a family that is known; valid: {', '.join(known)}.{hint}")


def read_config(fields: dict[str, Any], source: str = "config.json") -> DecoderConfig:
    """A config.json's content as a DecoderConfig; of a multimodal one the text part, and vision where we have it."""
    text = fields.get("text_config", fields)
    if not isinstance(text, dict):
        raise UsageError(f"{source}: text_config is a {type(text).__name__}, not an object with the model's fields")
    family = family_of(text, source)
    if text is fields or family.around is None or fields.get("vision_config") is None:
        return family.read(text, source)
    if not isinstance(fields["vision_config"], dict):
        kind = type(fields["vision_config"]).__name__
        raise UsageError(f"{source}: vision_config is a {kind}, not an object with the tower's fields")
    beside = {name: fields[name] for name in family.around.beside if name in fields}
    config = family.read({**text, **beside}, source)
    said = family.around.says(config)
    around = {k: v for k, v in fields.items() if k not in (*beside, "text_config") and said.get(k) != v}
    return config.model_copy(update={"around": around})


def write_config(config: DecoderConfig) -> dict[str, Any]:
    """The content of a config.json. Raises UsageError where the model has parts that its family cannot say."""
    family = FAMILIES[config.family]
    try:
        text = family.write(config)
    except ValueError as error:
        raise UsageError(f"family {config.family}: {error}") from None
    if config.vision is None:
        return text
    if family.around is None:
        raise UsageError(f"family {config.family} has no vision part; valid: vision = None")
    beside = {name: text.pop(name) for name in family.around.beside}
    return {**family.around.says(config), **config.around, **beside, "text_config": text}
