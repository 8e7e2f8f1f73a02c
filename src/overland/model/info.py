"""What a model is made of, counted on its real modules on the meta device: nothing is allocated, nothing is guessed."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overland.errors import UsageError
from overland.model.checkpoint import check_folder, has_weights, load_config, without_memory
from overland.model.config import DecoderConfig
from overland.model.decoder import Decoder
from overland.model.families import FAMILIES
from overland.model.families.tensors import VISION, Header, header_bytes, released_header
from overland.model.layer import DecoderLayer
from overland.model.moe import MoE
from overland.model.presets import PRESETS, preset
from overland.model.vision.block import VisionBlock

DTYPES = ("float32", "bfloat16", "float16")
AHEAD = "multi-token prediction"
A_LOG_MULTIPLE = 128  # the K3 release pads its 96 heads to this


@dataclass(frozen=True)
class ReleaseInfo:
    """A whole K3 release on disk: text with MXFP4 experts and A_log padded as released, vision tower and projector."""

    tensors: int
    text_bytes: int
    vision_parameters: int
    vision_bytes: int
    bytes: int


@dataclass(frozen=True)
class ModelInfo:
    """What a checkpoint stores is counted, selection biases included; `parameters`, `active` and `components` are those
    of the text part, `vision` those of the tower and projector by component (None where there is neither).

    `active`: what one token uses, so all but the routed experts that it does not choose and the prediction blocks.
    """

    source: str
    family: str
    weight_files: int | None
    """Of a folder: how many files hold the weights, whose names, shapes and types are those of the config. None for a
    preset, and where there is a config.json alone.
    """
    parameters: int
    active: int
    active_without_input_embedding: int
    components: dict[str, int]
    vision: dict[str, int] | None
    layers: str
    context: int
    bytes_bf16: int
    """On disk with everything in bf16 but what the releases keep in fp32."""
    bytes_mxfp4: int | None
    """The same with the routed experts in MXFP4; None where 32 does not divide their widths, or there are none."""
    release: ReleaseInfo | None
    dtype: str
    cache_bytes_per_token: int
    """What each further token adds: latents, keys and values of the layers that attend."""
    cache_bytes_per_sequence: int
    """What a sequence holds whatever its length: KDA's states and the convolutions' last inputs."""
    at_context: int
    cache_bytes_at_context: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe(source: str | os.PathLike[str], dtype: str = "float32", at_context: int | None = None) -> ModelInfo:
    """Describe a preset or a model folder; of a folder config.json is read, and the headers of the weights it holds.

    `dtype` is that of activations, so of the caches; KDA's state keeps float32 at least, as in a real run.
    `at_context` is the number of tokens that a cache is counted for, the model's whole context if None.
    Raises UsageError for an unknown name, type or context, BrokenFileError for a damaged config.json or weight file.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype = {dtype!r}; valid: {', '.join(DTYPES)}")
    config = _config(source)
    tokens = config.max_position_embeddings if at_context is None else at_context
    if not 1 <= tokens <= config.max_position_embeddings:
        raise UsageError(f"context = {tokens} tokens; valid: 1 to {config.max_position_embeddings} for {source}")
    folder = Path(source)
    files = check_folder(folder)[2] if folder.exists() and has_weights(folder) else None
    model = without_memory(config, source).to(getattr(torch, dtype))
    components = count_components(model)
    total = sum(components.values())
    routed = components.get("routed experts", 0)
    unused = routed * (config.moe.experts - config.moe.top_k) // config.moe.experts if config.moe else 0
    active = total - unused - components.get(AHEAD, 0)
    per_token, per_sequence = cache_bytes(model)
    family, state = FAMILIES[config.family], model.state_dict()
    packable = config.moe is not None and not any(
        w % 32 for w in (config.moe.latent or config.hidden_size, config.moe.width)
    )
    packed = released_header(family, config, state, mxfp4=True) if packable else None
    vision = count_vision(model)
    return ModelInfo(
        source=str(source),
        family=config.family,
        weight_files=None if files is None else len(files),
        parameters=total,
        active=active,
        active_without_input_embedding=active - components["embedding"],
        components=components,
        vision=vision or None,
        layers=layer_line(config),
        context=config.max_position_embeddings,
        bytes_bf16=header_bytes(released_header(family, config, state)),
        bytes_mxfp4=None if packed is None else header_bytes(packed),
        release=_release(packed) if packed is not None and vision else None,
        dtype=dtype,
        cache_bytes_per_token=per_token,
        cache_bytes_per_sequence=per_sequence,
        at_context=tokens,
        cache_bytes_at_context=per_sequence + tokens * per_token,
    )


def _release(packed: Header) -> ReleaseInfo:
    def stored(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (-(-shape[0] // A_LOG_MULTIPLE) * A_LOG_MULTIPLE,) if name.endswith("A_log") else shape

    tower = {name: tensor for name, tensor in packed.items() if name.startswith(VISION)}
    text = header_bytes({n: (dtype, stored(n, shape)) for n, (dtype, shape) in packed.items() if n not in tower})
    parameters = sum(math.prod(shape) for _, shape in tower.values())
    return ReleaseInfo(len(packed), text, parameters, header_bytes(tower), text + header_bytes(tower))


def layer_line(config: DecoderConfig) -> str:
    """How many layers have which mixer and which feed-forward."""
    mixers = Counter(layer.mixer.upper() for layer in config.layers)
    dense = sum(layer.feed_forward == "dense" for layer in config.layers)
    parts = [f"{dense} dense"] if dense else []
    if config.moe is not None:
        parts.append(f"{len(config.layers) - dense} with {config.moe.top_k} of {config.moe.experts} experts")
    return f"{len(config.layers)}: {' and '.join(f'{n} {name}' for name, n in mixers.items())}; {', '.join(parts)}"


def count_vision(model: Decoder) -> dict[str, int]:
    """Parameters of the vision tower and projector by component; empty where there is neither."""
    if model.vision_tower is None or model.mm_projector is None:
        return {}
    tower = model.vision_tower
    blocks = [block for block in tower.encoder.blocks if isinstance(block, VisionBlock)]
    parts: dict[str, list[nn.Module]] = {
        "patch embedding": [tower.patch_embed.proj],
        "patch positions": [tower.patch_embed.pos_emb],
        "vision attention": [part for block in blocks for part in (block.wqkv, block.wo)],
        "vision feed-forward": [block.mlp for block in blocks],
        "vision norms": [tower.encoder.final_layernorm, *(part for b in blocks for part in (b.norm0, b.norm1))],
        "projector": [model.mm_projector],
    }
    return {name: sum(p.numel() for module in part for p in module.parameters()) for name, part in parts.items()}


def count_components(model: Decoder) -> dict[str, int]:
    """Parameters of the text part by component; every parameter is in exactly one."""
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
            # what is stored: parameters, and the selection bias where the family keeps one
            for parameter in module.state_dict(keep_vars=True).values() if module is not None else ():
                taken.add(id(parameter))
                yield name, parameter
    for parameter in model.lm_head.parameters():
        if id(parameter) not in taken:  # a tied head is the embedding
            taken.add(id(parameter))
            yield "output head", parameter
    for parameter in body.mtp.parameters():
        taken.add(id(parameter))
        yield AHEAD, parameter
    for buffer in body.mtp.buffers():
        yield AHEAD, buffer
    for name, parameter in model.named_parameters():
        if id(parameter) not in taken and not name.startswith(VISION):
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
