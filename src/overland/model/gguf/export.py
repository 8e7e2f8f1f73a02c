"""A model folder written as one GGUF file, with everything that belongs to the model beside it.

Tensors go to the disk one at a time. Needs the `gguf` package (pip install 'overland[gguf]').
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overland.errors import UsageError
from overland.model.checkpoint import check_folder, load_model
from overland.model.config import DecoderConfig
from overland.model.convert import DTYPES, check_new, copy_companions, new_folder
from overland.model.gguf.layouts import layout_of
from overland.model.gguf.tensors import Entry, entries
from overland.model.gguf.vocabulary import vocabulary

FILE = "model.gguf"
FILE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 32}  # llama.cpp's numbers


def export_gguf(src: str | os.PathLike[str], dst: str | os.PathLike[str], dtype: str = "bfloat16") -> tuple[str, str]:
    """Write the model in `src` as `dst`/model.gguf; tokenizer, template, licences and lineage go beside it.

    Matrices are cast to `dtype`; vectors, convolutions and routers stay fp32. MXFP4 experts are unpacked. `dst` appears
    whole or not at all. Returns llama.cpp's name of the architecture and a line about the vocabulary. Raises UsageError
    for a model that llama.cpp would run otherwise, a `dst` that holds something, an unknown dtype, or a missing
    package; and what load_model raises.
    """
    src, dst = Path(src), Path(dst)
    if dtype not in DTYPES:
        raise UsageError(f"dtype = {dtype!r}; valid: {', '.join(DTYPES)}")
    try:
        import gguf
    except ImportError:
        raise UsageError("format = 'gguf' needs the gguf package: pip install 'overland[gguf]'") from None
    check_new(dst)
    config, _, _ = check_folder(src)
    layout = layout_of(config)
    words, said = vocabulary(src, config.vocab_size)
    if config.vision is not None:
        said += "; without the vision part, which llama.cpp has not"
    if config.eos_token_id is None and "tokenizer.ggml.tokens" in words:
        said += "; config.json has no eos_token_id, and llama.cpp then takes id 11 for the end"
    model = load_model(src, DTYPES[dtype])
    with new_folder(dst) as temporary:
        copy_companions(src, temporary)
        writer = gguf.GGUFWriter(temporary / FILE, layout.architecture)
        writer.add_uint32("general.file_type", FILE_TYPES[dtype])
        for key, value in layout.metadata(config).items():
            _put(writer, f"{layout.architecture}.{key}", value)
        for key, value in words.items():
            _put(writer, key, value)
        _put_special(writer, config, src)
        _write(writer, list(entries(layout, config, model.state_dict())), DTYPES[dtype])
        writer.close()
    return layout.architecture, said


def _put(writer: Any, key: str, value: Any) -> None:
    """A key in the type that llama.cpp expects: counts are u32, fractions f32."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _put_special(writer: Any, config: DecoderConfig, src: Path) -> None:
    """Which ids begin, end and pad a sequence, and the chat template where the folder has one."""
    end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    for name, number in (("bos", config.bos_token_id), ("eos", end), ("padding", config.pad_token_id)):
        if number is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    template = src / "chat_template.jinja"
    if template.is_file():
        writer.add_string("tokenizer.chat_template", template.read_text("utf-8"))


def _write(writer: Any, tensors: list[Entry], dtype: torch.dtype) -> None:
    """Headers first, then one tensor after another."""
    from gguf import GGMLQuantizationType

    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for entry in tensors:
        shape = entry.make().shape
        kind = _dtype(entry, shape, dtype)
        size = shape.numel() * kind.itemsize
        writer.add_tensor_info(entry.name, shape, np.dtype(np.float32), size, GGMLQuantizationType[kinds[kind]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for entry in tensors:
        value = entry.make()
        writer.write_tensor_data(_bytes(value.to(_dtype(entry, value.shape, dtype))))


def _dtype(entry: Entry, shape: torch.Size, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if entry.wide or len(shape) < 2 else dtype


def _bytes(value: Tensor) -> NDArray[np.uint8]:
    return value.contiguous().view(torch.uint8).numpy()
