"""A model folder written anew: from a released checkpoint to Overland's folder and back, checked on the way.

Both are the family's released layout; what differs is how a file came to be. Reading undoes packing (MXFP4), prefixes
and padding; writing gives plain tensors in shards with an index, so that every engine that knows the family reads them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from overland.errors import UsageError
from overland.model.checkpoint import SHARD_BYTES, check_folder, load_model, save_model
from overland.model.config import DecoderConfig
from overland.runs import explain_disk_errors, replace_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")


def convert_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    dtype: str = "bfloat16",
    shard_bytes: int = SHARD_BYTES,
) -> DecoderConfig:
    """Write the model in `src` to `dst` in its family's layout; tokenizer, template, licences and lineage go along.

    Tensors are cast to `dtype`, but for those that releases keep in fp32. `dst` appears whole or not at all. Raises
    UsageError for a `dst` that holds something or an unknown dtype, and what load_model raises.
    """
    src, dst = Path(src), Path(dst)
    if dtype not in DTYPES:
        raise UsageError(f"dtype = {dtype!r}; valid: {', '.join(DTYPES)}")
    if shard_bytes < 1:
        raise UsageError(f"shard size = {shard_bytes} bytes; valid: one or more")
    check_new(dst)
    check_folder(src)  # names, shapes and types, before the weights are read
    model = load_model(src, DTYPES[dtype])
    with new_folder(dst) as temporary:
        copy_companions(src, temporary)
        save_model(model, temporary, shard_bytes)
    return model.config


def check_new(dst: Path) -> None:
    """Raises UsageError where `dst` is anything but absent or an empty folder."""
    if dst.exists() and not (dst.is_dir() and not any(dst.iterdir())):
        raise UsageError(f"DST = '{dst}' exists and is not an empty folder; name a new one")


@contextmanager
def new_folder(dst: Path) -> Iterator[Path]:
    """A folder to fill, which gets the name `dst` at the end, or disappears where something fails."""
    dst = dst.resolve()
    temporary = dst.with_name(f".{dst.name}.{os.getpid()}.tmp")
    try:
        with explain_disk_errors(dst):
            temporary.mkdir(parents=True)
            yield temporary
        replace_folder(temporary, dst)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def copy_companions(src: Path, dst: Path) -> None:
    """Everything that goes with a model but its weights and config: tokenizer, template, licences, lineage."""
    for entry in sorted(src.iterdir()):
        if entry.is_dir() and entry.name.upper().startswith("LICEN"):
            shutil.copytree(entry, dst / entry.name)
        elif entry.is_file() and not entry.name.startswith(".") and not entry.name.endswith(WEIGHTS):
            shutil.copy2(entry, dst / entry.name)  # config.json is written over
