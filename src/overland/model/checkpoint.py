"""A model folder in the released Hugging Face layout: config.json and model.safetensors with K3's own key names.

Inside, a layer's experts are two stacked tensors; on disk each expert has w1 (gate), w3 (up) and w2 (down), [out, in].
Source: reference/architecture.md §14.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from overland import kernels
from overland.errors import BrokenFileError, UsageError
from overland.model.config import DecoderConfig
from overland.model.decoder import Decoder
from overland.model.presets import PRESETS, preset
from overland.runs import atomic_write

# What the released files keep in fp32 whatever the rest has: rounding would move decays and flip routes.
WIDE = ("A_log", "dt_bias", "o_norm.weight", "conv1d.weight", "e_score_correction_bias")
PREFIX = "language_model."  # the released text + vision checkpoint puts this before every text tensor


def to_released(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our parameter names to the released ones; stacked experts become one set of tensors an expert."""
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith(".experts.gate_up"):
            base, width = name.removesuffix(".gate_up"), value.shape[-1] // 2
            for e in range(value.shape[0]):
                out[f"{base}.{e}.w1.weight"] = value[e, :, :width].T.contiguous()
                out[f"{base}.{e}.w3.weight"] = value[e, :, width:].T.contiguous()
        elif name.endswith(".experts.down"):
            base = name.removesuffix(".down")
            for e in range(value.shape[0]):
                out[f"{base}.{e}.w2.weight"] = value[e].T.contiguous()
        else:
            out[name] = value.contiguous()
    return out


def from_released(tensors: dict[str, Tensor], model: Decoder, source: str) -> dict[str, Tensor]:
    """Released names to ours, for `model`. Raises BrokenFileError naming a missing, extra or misshapen tensor."""
    tensors = {name.removeprefix(PREFIX): value for name, value in tensors.items()}
    wanted = {name: value.shape for name, value in to_released(model.state_dict()).items()}
    for name, shape in wanted.items():
        if name not in tensors:
            raise BrokenFileError(f"{source}: '{name}' is missing; the config asks for it with shape {list(shape)}")
        if name.endswith(".A_log") and tensors[name].ndim == 1:  # released files pad the heads with zeros
            tensors[name] = tensors[name][: shape[0]]
        if tensors[name].shape != shape:
            raise BrokenFileError(
                f"{source}: '{name}' has shape {list(tensors[name].shape)}, the config asks for {list(shape)}"
            )
        if not torch.isfinite(tensors[name]).all():
            raise BrokenFileError(f"{source}: '{name}' holds values that are not finite")
    extra = sorted(tensors.keys() - wanted.keys())
    if extra:
        raise BrokenFileError(f"{source}: '{extra[0]}' is not a tensor of this model ({len(extra)} extra in all)")

    ours: dict[str, Tensor] = {}
    for name in model.state_dict():
        if name.endswith(".experts.gate_up"):
            base = name.removesuffix(".gate_up")
            ours[name] = torch.stack(
                [
                    torch.cat([tensors[f"{base}.{e}.w1.weight"].T, tensors[f"{base}.{e}.w3.weight"].T], dim=-1)
                    for e in range(model.config.num_experts)
                ]
            )
        elif name.endswith(".experts.down"):
            base = name.removesuffix(".down")
            ours[name] = torch.stack([tensors[f"{base}.{e}.w2.weight"].T for e in range(model.config.num_experts)])
        else:
            ours[name] = tensors[name]
    return ours


def unpack_mxfp4(tensors: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Each pair `X.weight_packed`, `X.weight_scale` of a quantised release becomes the `X.weight` (fp32) it stands for.

    Raises BrokenFileError naming a pair that does not fit together.
    """
    out = {name: value for name, value in tensors.items() if not name.endswith((".weight_packed", ".weight_scale"))}
    for name in sorted(tensors.keys() - out.keys()):
        base = name.removesuffix("_packed").removesuffix("_scale")
        packed, scales = tensors.get(f"{base}_packed"), tensors.get(f"{base}_scale")
        if packed is None or scales is None:
            raise BrokenFileError(f"{source}: '{name}' has no partner; '{base}_packed' and '{base}_scale' go together")
        rows, half = packed.shape if packed.ndim == 2 else (0, 0)
        fits = half % 16 == 0 and scales.shape == (rows, half // 16)
        if not fits or packed.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise BrokenFileError(
                f"{source}: '{base}_packed' {packed.dtype} {list(packed.shape)} and '_scale' {scales.dtype} "
                f"{list(scales.shape)} are not MXFP4; a row of K weights is K/2 bytes and K/32 scale bytes"
            )
        out[base] = kernels.mxfp4_dequantize(kernels.mxfp4_unpack(packed), scales)
    return out


def save_model(model: Decoder, directory: str | os.PathLike[str]) -> None:
    """Write config.json and model.safetensors into `directory`, each atomically. Tensors keep their dtype."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = to_released({name: value.detach().cpu() for name, value in model.state_dict().items()})
    atomic_write(directory / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    config = model.config.model_dump(exclude_none=True)
    atomic_write(directory / "config.json", json.dumps(config, indent=2) + "\n")


def load_model(
    dir_or_preset: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> Decoder:
    """A model from a folder, or a freshly initialised preset, cast to `dtype` but for what is fp32 in released files.

    Raises UsageError where neither exists and BrokenFileError naming the tensor or file that is wrong.
    """
    directory = Path(dir_or_preset)
    if not directory.exists() and str(dir_or_preset) in PRESETS:
        from overland.model.init import initialise

        model = initialise(Decoder(preset(str(dir_or_preset))), "induction", seed)
    else:
        model = _read_folder(directory)
    if dtype is not None:
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            value.data = value.data.to(torch.promote_types(dtype, torch.float32) if name.endswith(WIDE) else dtype)
    return model.to(device)


def _read_folder(directory: Path) -> Decoder:
    config_file, weights = directory / "config.json", directory / "model.safetensors"
    if not config_file.is_file():
        presets = ", ".join(PRESETS)
        raise UsageError(f"model = '{directory}' is neither a folder with config.json nor a preset ({presets})")
    if not weights.is_file():
        raise UsageError(f"{directory}: model.safetensors is missing")
    try:
        fields = json.loads(config_file.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BrokenFileError(f"{config_file}: not JSON: {error}") from None
    fields = fields.get("text_config", fields) if isinstance(fields, dict) else fields
    if not isinstance(fields, dict):
        raise BrokenFileError(f"{config_file}: holds a {type(fields).__name__}, not an object with the model's fields")
    fields.pop("quantization_config", None)  # says how the file is packed; the model in memory is not
    model = Decoder(DecoderConfig.from_dict(fields, source=str(config_file)))
    try:
        with safe_open(weights, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{weights}: cannot be read: {error}") from None
    tensors = unpack_mxfp4(tensors, str(weights))
    model.load_state_dict(from_released(tensors, model, str(weights)), assign=False)
    return model
