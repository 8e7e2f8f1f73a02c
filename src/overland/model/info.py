"""What a model is made of, counted on its real modules on the meta device: nothing is allocated, nothing is guessed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overland.errors import BrokenFileError, UsageError
from overland.model.cache import MLACache
from overland.model.config import DecoderConfig
from overland.model.decoder import Decoder, DecoderLayer
from overland.model.kda import KDA
from overland.model.moe import LatentMoE
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
    unused = routed * (config.num_experts - config.num_experts_per_token) // config.num_experts
    per_token, per_sequence = cache_bytes(model)
    full = len(config.linear_attn_config.full_attn_layers)
    dense = min(config.first_k_dense_replace, config.num_hidden_layers)
    return ModelInfo(
        source=str(source),
        parameters=total,
        active=total - unused,
        components=components,
        layers=f"{config.num_hidden_layers}: {config.num_hidden_layers - full} KDA and {full} MLA; {dense} dense, "
        f"{config.num_hidden_layers - dense} with {config.num_experts_per_token} of {config.num_experts} experts",
        context=config.max_position_embeddings,
        dtype=dtype,
        cache_bytes_per_token=per_token,
        cache_bytes_per_sequence=per_sequence,
    )


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
        if isinstance(layer, MLACache):
            per_token += layer.latents.shape[-1] * layer.latents.element_size()
        else:
            state_size = torch.promote_types(layer.state.dtype, torch.float32).itemsize
            per_sequence += layer.tail.numel() * layer.tail.element_size() + layer.state.numel() * state_size
    return per_token, per_sequence


def _named(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Each parameter with the component it belongs to, in the order of the forward pass."""
    body = model.model
    yield "embedding", body.embed_tokens.weight
    taken = {id(body.embed_tokens.weight)}
    for layer in body.layers:
        assert isinstance(layer, DecoderLayer)
        parts: list[tuple[str, nn.Module | None]] = [
            ("KDA mixers" if isinstance(layer.self_attn, KDA) else "MLA mixers", layer.self_attn),
            ("dense feed-forward", layer.mlp),
            *_moe_parts(layer.block_sparse_moe),
        ]
        for name, module in parts:
            for parameter in module.parameters() if module is not None else ():
                taken.add(id(parameter))
                yield name, parameter
    for parameter in model.lm_head.parameters():
        taken.add(id(parameter))
        yield "output head", parameter
    for parameter in model.parameters():
        if id(parameter) not in taken:
            yield "norms and depth queries", parameter


def _moe_parts(moe: LatentMoE | None) -> list[tuple[str, nn.Module | None]]:
    if moe is None:
        return []
    return [
        ("routers", moe.gate),
        ("latent projections", moe.routed_expert_down_proj),
        ("latent projections", moe.routed_expert_norm),
        ("latent projections", moe.routed_expert_up_proj),
        ("routed experts", moe.experts),
        ("shared experts", moe.shared_experts),
    ]


def _config(source: str | os.PathLike[str]) -> DecoderConfig:
    folder = Path(source)
    if not folder.exists() and str(source) in PRESETS:
        return preset(str(source))
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"model = '{source}' is neither a folder with config.json nor a preset ({', '.join(PRESETS)})")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BrokenFileError(f"{path}: cannot be read ({error})") from None
    return DecoderConfig.from_dict(fields, str(path))
