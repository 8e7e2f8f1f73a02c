"""A model folder in a released Hugging Face layout: config.json and safetensors files with the family's own names.

Reading goes shard by shard straight into the model's parameters, so that at its peak memory holds the model and one
tensor; names, shapes and types are checked on the files' headers before anything is allocated.
Source: reference/architecture.md §14; the safetensors format.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from overland.errors import BrokenFileError, UsageError
from overland.model.config import DecoderConfig
from overland.model.decoder import Decoder
from overland.model.families import FAMILIES, Piece, pieces, read_config, write_config
from overland.model.families.tensors import PADDED, TEXT, WIDE
from overland.model.packed import Halves, Keep, check_pairs, finite, matrix_of
from overland.model.presets import PRESETS, preset
from overland.model.vision.preprocess import CONFIG as PREPROCESSING
from overland.model.vision.preprocess import Preprocessing
from overland.runs import atomic_write

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
FLOATS = ("F64", "F32", "BF16", "F16")


def released_tensors(config: DecoderConfig, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(released name, tensor) of everything in `state`: a state dict, or gradients under the same names."""
    for piece in pieces(FAMILIES[config.family], config, state):
        if not piece.copy:
            yield piece.name, piece.read_from(state[piece.ours])


def save_model(model: Decoder, directory: str | os.PathLike[str], shard_bytes: int = SHARD_BYTES) -> None:
    """Write config.json and the weights into `directory`, each file atomically. Tensors keep their dtype.

    Up to `shard_bytes` one model.safetensors, beyond that numbered shards and their index; for a model with vision also
    preprocessor_config.json, unless one is there. Raises UsageError, before anything is written, where the family's
    layout has no place for a part of the model, or that file's patches are not the model's.
    """
    config = json.dumps(write_config(model.config), indent=2) + "\n"
    _check_savable(model)
    directory = Path(directory)
    vision = model.config.vision
    how = None if vision is None else Preprocessing.of_folder(directory, vision)
    directory.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    plan = _plan_shards(model.config, state, shard_bytes)
    names: dict[str, str] = {}
    for number, shard in enumerate(plan, start=1):
        file = "model.safetensors" if len(plan) == 1 else f"model-{number:05}-of-{len(plan):05}.safetensors"
        tensors = {}
        for piece in shard:
            value = piece.read_from(state[piece.ours].detach().cpu())
            tensors[piece.name] = value.clone() if piece.copy else value
        atomic_write(directory / file, save(tensors, metadata={"format": "pt"}))
        names.update(dict.fromkeys(tensors, file))
    if len(plan) > 1:
        total = sum(_bytes(piece, state) for shard in plan for piece in shard)
        index = {"metadata": {"total_size": total}, "weight_map": names}
        atomic_write(directory / INDEX, json.dumps(index, indent=2) + "\n")
    _remove_older(directory, set(names.values()) | ({INDEX} if len(plan) > 1 else set()))
    if how is not None and not (directory / PREPROCESSING).is_file():
        atomic_write(directory / PREPROCESSING, json.dumps(how.to_dict(), indent=2) + "\n")
    atomic_write(directory / "config.json", config)


def _remove_older(directory: Path, kept: set[str]) -> None:
    """Take away weights of an earlier save into the same folder; readers would prefer an old model.safetensors."""
    for file in (directory / "model.safetensors", directory / INDEX, *directory.glob("model-*-of-*.safetensors")):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def load_model(
    dir_or_preset: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    keep: Keep | None = None,
) -> Decoder:
    """A model from a folder, or a freshly initialised preset, in `dtype` but for what is fp32 in released files.

    Without `dtype` everything is fp32. MXFP4 matrices are decoded, unless `keep` takes them in packed. Raises
    UsageError where neither exists and BrokenFileError naming the tensor or file that is wrong.
    """
    directory = Path(dir_or_preset)
    if directory.exists() or str(dir_or_preset) not in PRESETS:
        return _read_folder(directory, dtype or torch.float32, torch.device(device), keep)
    from overland.model.init import initialise

    model = initialise(Decoder(preset(str(dir_or_preset))), "induction", seed)
    if dtype is not None:
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            value.data = value.data.to(_dtype_of(name, dtype))
    return model.to(device)


def load_config(directory: str | os.PathLike[str]) -> DecoderConfig:
    """The config of a model folder. Raises UsageError or BrokenFileError naming what is wrong."""
    file = Path(directory) / "config.json"
    if not file.is_file():
        presets = ", ".join(PRESETS)
        raise UsageError(f"model = '{directory}' is neither a folder with config.json nor a preset ({presets})")
    fields = _read_json(file)
    for part in (fields, fields.get("text_config")):
        if isinstance(part, dict):
            part.pop("quantization_config", None)  # says how the file is packed; the model in memory is not
    return read_config(fields, str(file))


def without_memory(config: DecoderConfig, source: object) -> Decoder:
    """The model on the meta device. Raises UsageError naming `source` where sizes go beyond what can be counted."""
    try:
        with torch.device("meta"):
            return Decoder(config)
    except RuntimeError as error:  # torch's own, of a tensor with more than 2^63 bytes
        raise UsageError(f"{source}: the sizes are too large for any machine ({str(error).splitlines()[0]})") from None


def has_weights(directory: Path) -> bool:
    """Whether a folder holds weights or their index, and not a config.json alone."""
    return (directory / INDEX).is_file() or any(directory.glob("model*.safetensors"))


def check_folder(directory: str | os.PathLike[str]) -> tuple[DecoderConfig, dict[str, Piece], list[Path]]:
    """A model folder's config, the pieces it must hold by released name less `language_model.`, and its weight files.

    Reads headers only. Raises UsageError or BrokenFileError naming the field or tensor that is wrong.
    """
    config, _, wanted, files, _ = _survey(Path(directory))
    return config, wanted, files


def _read_folder(directory: Path, dtype: torch.dtype, device: torch.device, keep: Keep | None) -> Decoder:
    _, model, wanted, files, found = _survey(directory)
    pairs = {name: wanted[name] for name in filter(None, map(matrix_of, found))}
    take_in = keep(model, pairs) if keep is not None and pairs else None
    _allocate(model, dtype, device)
    state = model.state_dict()
    halves = Halves()
    for file in files:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                ours = name.removeprefix(TEXT)
                if ours not in found:
                    continue
                value = tensors.get_tensor(name)
                matrix = matrix_of(ours)
                if matrix is not None:
                    pair = halves.add(ours, value)
                    if pair is None:
                        continue
                    if take_in is not None:
                        if not finite(pair):
                            raise BrokenFileError(f"{file}: '{matrix}' holds values that are not finite")
                        take_in(wanted[matrix], pair)
                        continue
                    value, ours = pair.decoded(), matrix
                piece = wanted[ours]
                _check_values(file, ours, value, state[piece.ours].dtype)
                if ours.endswith(PADDED) and value.ndim == 1:
                    value = value[: piece.shape[0]]
                with torch.no_grad():
                    piece.write_into(state[piece.ours], value)
    return model


def _check_values(file: Path, name: str, value: Tensor, dtype: torch.dtype) -> None:
    """Raises BrokenFileError for a tensor that is not finite, UsageError for one that would not be in `dtype`."""
    if torch.isfinite(value.to(dtype)).all():
        return
    if not torch.isfinite(value).all():
        raise BrokenFileError(f"{file}: '{name}' holds values that are not finite")
    largest, kind = value.abs().max().item(), str(dtype).removeprefix("torch.")
    raise UsageError(f"{file}: '{name}' holds {largest:.3g}, which is beyond dtype = {kind}; take bfloat16 or float32")


def _survey(directory: Path) -> tuple[DecoderConfig, Decoder, dict[str, Piece], list[Path], dict[str, Header]]:
    """Config, a model without memory, the pieces wanted, the files, and what their headers say, checked."""
    config = load_config(directory)
    model = without_memory(config, directory / "config.json")
    everything = list(pieces(FAMILIES[config.family], config, model.state_dict()))
    wanted = {piece.name.removeprefix(TEXT): piece for piece in everything if not piece.copy}
    copies = {piece.name.removeprefix(TEXT) for piece in everything if piece.copy}
    copies |= {"lm_head.weight"} if config.tie_word_embeddings else set()
    files = _shards(directory)
    found: dict[str, Header] = {}
    for file in files:
        for name, header in _headers(file).items():
            if name in found:
                raise BrokenFileError(f"{file}: '{name}' is in {found[name].file.name} too; valid: each tensor once")
            if name not in copies:
                found[name] = header
    _check(wanted, found, directory if len(files) > 1 else files[0])
    return config, model, wanted, files, found


@dataclass(frozen=True)
class Header:
    """What a file's header says of one tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def _shards(directory: Path) -> list[Path]:
    """The files that hold the weights: one, or those that the index names."""
    whole, index = directory / "model.safetensors", directory / INDEX
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise UsageError(f"{directory}: model.safetensors is missing, and there is no {INDEX} either")
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise BrokenFileError(f"{index}: weight_map is not an object from tensor names to files")
    files = [directory / name for name in sorted(set(names.values()))]
    for file in files:
        if file.parent != directory or not file.is_file():
            raise BrokenFileError(f"{index}: names '{file.name}', which is not a file beside it")
    return files


def _headers(file: Path) -> dict[str, Header]:
    """Name (less `language_model.`), shape and type of a file's tensors, checked for a type that weights can have."""
    out = {}
    with _opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a dict)
            entry = tensors.get_slice(name)
            ours = name.removeprefix(TEXT)
            out[ours] = Header(file, tuple(entry.get_shape()), entry.get_dtype())
            if matrix_of(ours) is None and out[ours].dtype not in FLOATS:
                raise BrokenFileError(f"{file}: '{ours}' has type {out[ours].dtype}; valid: {', '.join(FLOATS)}")
    return out


def _check(wanted: dict[str, Piece], found: dict[str, Header], source: Path) -> None:
    """Raises BrokenFileError naming the first missing, misshapen or extra tensor, or a broken MXFP4 pair."""
    shapes = check_pairs(found) | {name: h.shape for name, h in found.items() if matrix_of(name) is None}
    files = {matrix_of(name) or name: header.file for name, header in found.items()}
    for name, piece in wanted.items():
        if name not in shapes:
            raise BrokenFileError(
                f"{source}: '{name}' is missing; the config asks for it with shape {list(piece.shape)}"
            )
        shape = shapes[name]
        padded = name.endswith(PADDED) and len(shape) == len(piece.shape) == 1 and shape[0] >= piece.shape[0]
        if shape != piece.shape and not padded:
            raise BrokenFileError(
                f"{files[name]}: '{name}' has shape {list(shape)}, the config asks for {list(piece.shape)}"
            )
    extra = sorted(shapes.keys() - wanted.keys())
    if extra:
        raise BrokenFileError(f"{source}: '{extra[0]}' is not a tensor of this model ({len(extra)} extra in all)")


def _allocate(model: Decoder, dtype: torch.dtype, device: torch.device) -> None:
    """Give a meta model its memory. What a file does not hold (a selection bias that is not saved) starts at zero."""
    for name, value in list(model.named_parameters()):
        parent, _, leaf = name.rpartition(".")
        if not value.is_meta:
            continue  # what is kept packed has its memory already
        made = torch.empty(value.shape, dtype=_dtype_of(name, dtype), device=device)
        setattr(model.get_submodule(parent), leaf, torch.nn.Parameter(made))
    for name, buffer in list(model.named_buffers()):
        parent, _, leaf = name.rpartition(".")
        if not buffer.is_meta:
            continue
        zeros = torch.zeros(buffer.shape, dtype=_dtype_of(name, dtype), device=device)
        setattr(model.get_submodule(parent), leaf, zeros)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """A parameter's type in a model of `dtype`: what released files keep in fp32 is never narrower."""
    return torch.promote_types(dtype, torch.float32) if name.endswith(WIDE) else dtype


def _plan_shards(config: DecoderConfig, state: Mapping[str, Tensor], limit: int) -> list[list[Piece]]:
    shards: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces(FAMILIES[config.family], config, state):
        if shards[-1] and size + _bytes(piece, state) > limit:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += _bytes(piece, state)
    return shards


def _bytes(piece: Piece, state: Mapping[str, Tensor]) -> int:
    return math.prod(piece.shape) * state[piece.ours].element_size()


def _check_savable(model: Decoder) -> None:
    """Raises UsageError where a selection bias was trained that the family's files have no place for."""
    saved = model.state_dict().keys()
    for name, value in model.named_buffers():
        if name not in saved and bool(value.any()):
            raise UsageError(
                f"'{name}' is not zero, and the files of family {model.config.family} have no place for it"
            )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BrokenFileError(f"{file}: cannot be read: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BrokenFileError(f"{file}: holds a {type(fields).__name__}, not an object with the model's fields")
    return fields


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A safetensors file; what is wrong with it is said in one line."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise BrokenFileError(f"{file}: cannot be read: {error}") from None
