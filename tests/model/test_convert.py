"""Import and export: the same model in another file, with what goes along, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import random_ids, tiny

from overland.errors import BrokenFileError, UsageError
from overland.model import load_model, save_model
from overland.model.convert import convert_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tiny(torch.float32), tmp_path / "model")
    for name in ("tokenizer.json", "chat_template.jinja", "LICENSE", "lineage.json"):
        (tmp_path / "model" / name).write_text(name)
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"old")
    return tmp_path / "model"


def test_the_same_model_in_half_the_bytes_with_its_companions(folder: Path, tmp_path: Path) -> None:
    config = convert_folder(folder, tmp_path / "out", "bfloat16", shard_bytes=8000)
    assert config == load_model(folder).config
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE", "lineage.json"} <= names
    assert "pytorch_model.bin" not in names
    assert "model.safetensors.index.json" in names
    dtypes = {
        name: value.dtype
        for file in (tmp_path / "out").glob("*.safetensors")
        for name, value in load_file(file).items()
    }
    assert dtypes["lm_head.weight"] == torch.bfloat16
    assert dtypes["model.layers.0.self_attn.A_log"] == torch.float32
    ids = random_ids(1, 9)
    wanted = load_model(folder, torch.bfloat16)(ids).logits
    assert torch.equal(load_model(tmp_path / "out", torch.bfloat16)(ids).logits, wanted)


def test_nothing_is_written_where_something_is_wrong(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dtype = 'int4'; valid: float32"):
        convert_folder(folder, tmp_path / "out", "int4")
    with pytest.raises(UsageError, match="exists and is not an empty folder"):
        convert_folder(folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(BrokenFileError, match="cannot be read"):
        convert_folder(folder, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
