"""What a model is made of, counted on its real modules on the meta device: nothing is allocated, nothing is guessed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overland.errors import UsageError
from overland.model.checkpoint import load_config
from overland.model.config import DecoderConfig
from overland.model.decoder import Decoder
from overland.model.layer import DecoderLayer
from overland.model.moe import MoE
from overland.model.presets import PRESETS, preset

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelInfo:
    """Parameters are counted, buffers are not. `active`: all but the routed experts that a token does not choose."""

    source: str
    parameters: int
    active: int
    components: dict[str, int]
    layers: str
    context: int
    dtype: str
    cache_bytes_per_token: int
    """What each further token adds: the latents of the full-attention layers."""
    cache_bytes_per_sequence: int
    """What a sequence holds whatever its length: KDA's states and the convolutions' last inputs."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe(source: str | os.PathLike[str], dtype: str = "float32") -> ModelInfo:
    """Describe a preset or a model folder; of a folder only config.json is read.

    `dtype` is that of activations, so of the latents; KDA's state keeps float32 at least, as in a real run.
    Raises UsageError for an unknown name or type, BrokenFileError for a damaged config.json.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype = {dtype!r}; valid: {', '.join(DTYPES)}")
    config = _config(source)
    with torch.device("meta"):
        model = Decoder(config).to(getattr(torch, dtype))
    components = count_components(model)
    total = sum(components.values())
    routed = components.get("routed experts", 0)
    unused = routed * (config.moe.experts - config.moe.top_k) // config.moe.experts if config.moe else 0
    per_token, per_sequence = cache_bytes(model)
    return ModelInfo(
        source=str(source),
        parameters=total,
        active=total - unused,
        components=components,
        layers=layer_line(config),
        context=config.max_position_embeddings,
        dtype=dtype,
        cache_bytes_per_token=per_token,
        cache_bytes_per_sequence=per_sequence,
    )


def layer_line(config: DecoderConfig) -> str:
    """How many layers have which mixer and which feed-forward."""
    mixers = Counter(layer.mixer.upper() for layer in config.layers)
    dense = sum(layer.feed_forward == "dense" for layer in config.layers)
    parts = [f"{dense} dense"] if dense else []
    if config.moe is not None:
        parts.append(f"{len(config.layers) - dense} with {config.moe.top_k} of {config.moe.experts} experts")
    return f"{len(config.layers)}: {' and '.join(f'{n} {name}' for name, n in mixers.items())}; {', '.join(parts)}"


def count_components(model: Decoder) -> dict[str, int]:
    """Parameters by component; every parameter is in exactly one."""
    found: dict[str, int] = {}
    for name, parameter in _named(model):
        found[name] = found.get(name, 0) + parameter.numel()
    return found


def cache_bytes(model: Decoder) -> tuple[int, int]:
    """(bytes that every further token adds, bytes that a sequence holds whatever its length) of the real caches."""
    per_token = per_sequence = 0
    for layer in model.new_cache(1).layers:
        for name, value in vars(layer).items():
            if layer.slotted:
                per_token += value.shape[2:].numel() * value.element_size()
            else:
                wide = torch.promote_types(value.dtype, torch.float32) if name == "state" else value.dtype
                per_sequence += value.numel() * wide.itemsize
    return per_token, per_sequence


def _named(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Each parameter with the component it belongs to, in the order of the forward pass."""
    body = model.model
    yield "embedding", body.embed_tokens.weight
    taken = {id(body.embed_tokens.weight)}
    for index, layer in enumerate(body.layers):
        assert isinstance(layer, DecoderLayer)
        parts: list[tuple[str, nn.Module | None]] = [
            (f"{model.config.layers[index].mixer.upper()} mixers", layer.self_attn),
            ("dense feed-forward", layer.mlp),
            *_moe_parts(layer.block_sparse_moe),
        ]
        for name, module in parts:
            for parameter in module.parameters() if module is not None else ():
                taken.add(id(parameter))
                yield name, parameter
    for parameter in model.lm_head.parameters():
        if id(parameter) not in taken:  # a tied head is the embedding
            taken.add(id(parameter))
            yield "output head", parameter
    for parameter in model.parameters():
        if id(parameter) not in taken:
            yield "norms and depth queries", parameter


def _moe_parts(moe: MoE | None) -> list[tuple[str, nn.Module | None]]:
    if moe is None:
        return []
    latent = (moe.routed_expert_down_proj, moe.routed_expert_norm, moe.routed_expert_up_proj) if moe.latent else ()
    return [
        ("routers", moe.gate),
        *(("latent projections", part) for part in latent),
        ("routed experts", moe.experts),
        ("shared experts", moe.shared_experts),
    ]


def _config(source: str | os.PathLike[str]) -> DecoderConfig:
    if not Path(source).exists() and str(source) in PRESETS:
        return preset(str(source))
    return load_config(source)
