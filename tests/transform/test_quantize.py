"""Quantised models: what the folder loads as is what the in-memory form computes, and nothing is half written.

The packed bytes are read back with code of this file's own, in numpy, from the format's definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import MEDIA, drawn, with_vision
from torch import Tensor

import overland.transform.quantize as quantize_module
from overland.errors import BrokenFileError, OverlandError, UsageError
from overland.model import Decoder, initialise, load_model, preset, save_model
from overland.model.vision import Images
from overland.transform import QuantReport, quantize_experts, quantize_folder

IDS = torch.arange(48).view(2, 24) * 7 % 640


def tiny(**changes: object) -> Decoder:
    return initialise(Decoder(preset("nano", **changes)), "induction", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved nano model with everything that a finished run puts beside it."""
    path = tmp_path_factory.mktemp("models") / "nano"
    save_model(tiny(), path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "LICENSE", "LICENSE-data.txt"):
        (path / name).write_text(f"this is {name}\n")
    (path / "lineage.json").write_text('{"sources": ["a"]}\n')
    (path / "LICENSES").mkdir()
    (path / "LICENSES" / "PSF-2.0.txt").write_text("terms\n")
    return path


@pytest.fixture(scope="module")
def packed(folder: Path) -> tuple[Path, QuantReport]:
    dst = folder.parent / "nano-mxfp4"
    return dst, quantize_folder(folder, dst)


def states_are_identical(one: Decoder, other: Decoder) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(m == n and x.numpy().tobytes() == y.numpy().tobytes() for (m, x), (n, y) in pairs)


# ---------------------------------------------------------------- the two forms agree


@torch.no_grad()
def test_the_folder_loads_as_the_model_quantised_in_memory(folder: Path, packed: tuple[Path, QuantReport]) -> None:
    plain, in_memory = load_model(folder), load_model(folder)
    report = quantize_experts(in_memory)
    loaded = load_model(packed[0])
    assert states_are_identical(loaded, in_memory)
    assert torch.equal(loaded(IDS).logits, in_memory(IDS).logits)
    assert not torch.equal(loaded(IDS).logits, plain(IDS).logits)
    by_name = {t.name: t for t in report.tensors}
    for tensor in packed[1].tensors:
        assert tensor.relative_error == pytest.approx(by_name[tensor.name].relative_error, rel=1e-9)
        assert tensor.worst == by_name[tensor.name].worst
    assert len(packed[1].tensors) == len(by_name) == 6


@pytest.mark.parametrize("rule", ["even", "floor", "ceil"])
def test_quantising_twice_changes_nothing_more(rule: str) -> None:
    once, twice = tiny(), tiny()
    quantize_experts(once, rule)
    quantize_experts(twice, rule)
    second = quantize_experts(twice, rule)
    assert states_are_identical(once, twice)
    assert second.relative_error == 0


def test_a_quantised_model_saved_and_quantised_again_gives_the_same_folder(
    packed: tuple[Path, QuantReport], tmp_path: Path
) -> None:
    save_model(load_model(packed[0]), tmp_path / "plain")
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    report = quantize_folder(tmp_path / "plain", tmp_path / "again")
    assert report.relative_error == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (packed[0] / "model.safetensors").read_bytes()


def test_only_routed_experts_change() -> None:
    plain, quantised = tiny(), tiny()
    quantize_experts(quantised)
    changed = {
        name for name, value in plain.state_dict().items() if not torch.equal(value, quantised.state_dict()[name])
    }
    assert changed == {
        f"model.layers.{layer}.block_sparse_moe.experts.{part}" for layer in (1, 2, 3) for part in ("gate_up", "down")
    }


def test_a_bf16_model_stays_bf16_and_takes_the_same_values() -> None:
    narrow = tiny().to(torch.bfloat16)
    wide = tiny().to(torch.bfloat16).float()
    quantize_experts(narrow)
    quantize_experts(wide)
    for name, value in narrow.state_dict().items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value.float(), wide.state_dict()[name].float())


# ---------------------------------------------------------------- the released layout


def unpack_with_numpy(packed: Tensor, scales: Tensor) -> np.ndarray:
    """[out, in/2] and [out, in/32] bytes to [out, in] values, from the format's definition alone."""
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    data = packed.numpy()
    out = np.empty((data.shape[0], 2 * data.shape[1]))
    for nibble, start in ((data & 15, 0), (data >> 4, 1)):
        out[:, start::2] = magnitudes[nibble & 7] * np.where(nibble & 8, -1.0, 1.0)
    return out * np.repeat(2.0 ** (scales.numpy().astype(np.int64) - 127), 32, axis=1)


def test_tensors_follow_the_release(folder: Path, packed: tuple[Path, QuantReport]) -> None:
    before, after = load_file(folder / "model.safetensors"), load_file(packed[0] / "model.safetensors")
    model = load_model(packed[0]).state_dict()
    experts = [name for name in before if ".experts." in name]
    assert len(experts) == 3 * 16 * 3
    for name, value in before.items():
        if name not in experts:
            assert after[name].dtype == value.dtype
            assert torch.equal(after[name], value)
            continue
        out, width = value.shape
        codes, scales = after[f"{name}_packed"], after[f"{name}_scale"]
        assert (codes.dtype, codes.shape) == (torch.uint8, (out, width // 2))
        assert (scales.dtype, scales.shape) == (torch.uint8, (out, width // 32))
        values = unpack_with_numpy(codes, scales)
        assert np.abs(values - value.numpy()).max() <= 2.0 ** (int(scales.max()) - 127)
        base, expert, matrix, _ = name.rsplit(".", 3)
        stacked = model[f"{base}.{'down' if matrix == 'w2' else 'gate_up'}"][int(expert)].T
        rows = stacked if matrix == "w2" else stacked[:out] if matrix == "w1" else stacked[out:]
        assert np.array_equal(rows.numpy(), values)
    assert len(after) == len(before) + len(experts)


def test_config_says_what_the_release_says(folder: Path, packed: tuple[Path, QuantReport]) -> None:
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, packed[0]))
    quantization = after.pop("quantization_config")
    assert after == before
    assert quantization["quant_method"] == "compressed-tensors"
    assert quantization["format"] == "mxfp4-pack-quantized"
    assert quantization["quantization_status"] == "compressed"
    assert quantization["scale_rule"] == "even"
    (group,) = quantization["config_groups"].values()
    assert group["targets"] == ["Linear"]
    assert (
        group["weights"].items()
        >= {
            "num_bits": 4,
            "type": "float",
            "strategy": "group",
            "group_size": 32,
            "symmetric": True,
            "scale_dtype": "torch.uint8",
        }.items()
    )
    assert "input_activations" not in group


def test_ignored_patterns_name_every_matrix_but_the_experts(packed: tuple[Path, QuantReport]) -> None:
    """compressed-tensors matches a module's name from its start (re.match); the rest is what a reader finds packed."""
    config = json.loads((packed[0] / "config.json").read_text())["quantization_config"]
    patterns = [re.compile(pattern.removeprefix("re:")) for pattern in config["ignore"]]
    for name, tensor in load_file(packed[0] / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        if tensor.ndim == 2 and "embed_tokens" not in name:
            assert any(p.match(module) for p in patterns) != kind.startswith("weight_"), name


def test_tokenizer_template_licences_and_lineage_come_along(folder: Path, packed: tuple[Path, QuantReport]) -> None:
    here, there = (
        {str(f.relative_to(path)): f.read_bytes() for path in (root,) for f in path.rglob("*") if f.is_file()}
        for root in (folder, packed[0])
    )
    assert there.keys() == here.keys()
    assert len(there) == 9
    for name in there.keys() - {"config.json", "model.safetensors"}:
        assert there[name] == here[name]


@torch.no_grad()
def test_a_release_with_a_text_config_and_prefixed_names_keeps_both(folder: Path, tmp_path: Path) -> None:
    src = tmp_path / "release"
    src.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file({f"language_model.{n}": t.bfloat16() for n, t in tensors.items()}, src / "model.safetensors")
    config = {"model_type": "kimi_k3", "text_config": json.loads((folder / "config.json").read_text())}
    (src / "config.json").write_text(json.dumps(config))

    quantize_folder(src, tmp_path / "out", rule="ceil")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["model_type"] == "kimi_k3"
    assert written["text_config"]["quantization_config"]["scale_rule"] == "ceil"
    assert all(name.startswith("language_model.") for name in load_file(tmp_path / "out" / "model.safetensors"))
    in_memory = load_model(src)
    quantize_experts(in_memory, "ceil")
    assert torch.equal(load_model(tmp_path / "out")(IDS).logits, in_memory(IDS).logits)


@torch.no_grad()
def test_a_model_with_vision_is_packed_as_released_and_its_tower_stays(tmp_path: Path) -> None:
    wide = {"moe_intermediate_size": 32, "routed_expert_hidden_size": 32}
    model = drawn(with_vision(wide), torch.float32)
    save_model(model, tmp_path / "src")
    quantize_folder(tmp_path / "src", tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    expert = "language_model.model.layers.1.block_sparse_moe.experts.0.w2.weight"
    assert {name for name in tensors if name.startswith(expert)} == {f"{expert}_packed", f"{expert}_scale"}
    for name, value in load_file(tmp_path / "src" / "model.safetensors").items():
        if not name.startswith("language_model."):
            assert torch.equal(tensors[name], value), name
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["text_config"]["quantization_config"]["format"] == "mxfp4-pack-quantized"
    ids = torch.tensor([[3, MEDIA, MEDIA, 5]])
    images = Images(torch.linspace(-1, 1, 96).view(8, 3, 2, 2), ((1, 2, 4),))
    quantize_experts(model)
    again = load_model(tmp_path / "out")
    assert again.config == model.config
    assert torch.equal(again(ids, images=images).logits, model(ids, images=images).logits)


def test_report_counts_bytes_and_errors(packed: tuple[Path, QuantReport]) -> None:
    report = packed[1]
    weights = 3 * 16 * 3 * 64 * 64
    assert report.weights == weights
    assert report.bytes_before == 4 * weights
    assert report.bytes_after == weights * 17 // 32  # 4.25 bits a weight
    assert 0.10 < report.relative_error < 0.125
    shown = json.loads(json.dumps(report.to_dict()))
    assert shown["scale_rule"] == "even"
    assert [t["name"] for t in shown["tensors"]] == [t.name for t in report.tensors]


# ---------------------------------------------------------------- bad input, before anything is written


def edited(folder: Path, to: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> Path:
    """A copy of `folder` whose config and tensors were changed."""
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change(config, tensors)
    to.mkdir()
    (to / "config.json").write_text(json.dumps(config))
    save_file(tensors, to / "model.safetensors")
    return to


def test_a_folder_that_holds_something_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not an empty folder"):
        quantize_folder(folder, tmp_path)
    with pytest.raises(UsageError, match="is not an empty folder"):
        quantize_folder(folder, tmp_path / "kept.txt")
    with pytest.raises(UsageError, match="is not an empty folder"):
        quantize_folder(folder, folder)
    assert [f.name for f in tmp_path.iterdir()] == ["kept.txt"]


def test_an_empty_folder_is_filled(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dst").mkdir()
    quantize_folder(folder, tmp_path / "dst")
    assert (tmp_path / "dst" / "model.safetensors").is_file()
    assert [f.name for f in tmp_path.iterdir()] == ["dst"]


@pytest.mark.parametrize("field", ["moe_intermediate_size", "routed_expert_hidden_size"])
def test_widths_that_blocks_do_not_divide_are_named(field: str, tmp_path: Path) -> None:
    model = tiny(**{field: 48})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UsageError, match=f"{field} = 48 is not a multiple of 32.* 64"):
        quantize_experts(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    save_model(model, tmp_path / "src")
    with pytest.raises(UsageError, match=f"config.json: {field} = 48 is not a multiple of 32"):
        quantize_folder(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


def test_a_model_without_routed_experts_is_refused() -> None:
    with pytest.raises(UsageError, match="first_k_dense_replace = 4"):
        quantize_experts(tiny(first_k_dense_replace=4))


def test_a_quantised_source_is_refused(packed: tuple[Path, QuantReport], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quantised already"):
        quantize_folder(packed[0], tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


def test_a_source_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no config"):
        quantize_folder(tmp_path, tmp_path / "dst")
    with pytest.raises(UsageError, match="'evn' is unknown"):
        quantize_folder(folder, tmp_path / "dst", rule="evn")
    assert not list(tmp_path.iterdir())


def test_a_weight_that_is_not_finite_is_named_and_nothing_changes(folder: Path, tmp_path: Path) -> None:
    model = tiny()
    name = "model.layers.2.block_sparse_moe.experts.down"
    with torch.no_grad():
        model.get_parameter(name)[3, 5, 7] = float("nan")
    before = {n: value.clone() for n, value in model.state_dict().items()}
    with pytest.raises(OverlandError, match=name):
        quantize_experts(model)
    assert all(torch.equal(before[n].nan_to_num(), v.nan_to_num()) for n, v in model.state_dict().items())

    def break_one(_config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.1.block_sparse_moe.experts.4.w3.weight"][0, 0] = float("inf")

    with pytest.raises(BrokenFileError, match=r"experts\.4\.w3\.weight' holds values that are not finite"):
        quantize_folder(edited(folder, tmp_path / "src", break_one), tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


EXPERT = "model.layers.1.block_sparse_moe.experts.0.w1.weight"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda _c, t: t.pop(f"{EXPERT}_scale"), "has no partner"),
        (lambda _c, t: t.pop(f"{EXPERT}_packed"), "has no partner"),
        (lambda _c, t: t.update({f"{EXPERT}_scale": t[f"{EXPERT}_scale"][:, :1].clone()}), "are not MXFP4"),
        (lambda _c, t: t.update({f"{EXPERT}_scale": t[f"{EXPERT}_scale"].float()}), "are not MXFP4"),
        (lambda _c, t: t[f"{EXPERT}_scale"].fill_(255), "not finite"),
        (lambda c, _t: c.update(moe_intermediate_size=96), "the config asks for"),
    ],
    ids=["no scales", "no codes", "scales too few", "scales not bytes", "NaN scales", "another width"],
)
def test_a_broken_quantised_folder_is_named(
    change: Callable[..., None], message: str, packed: tuple[Path, QuantReport], tmp_path: Path
) -> None:
    with pytest.raises(BrokenFileError, match=message):
        load_model(edited(packed[0], tmp_path / "broken", change))


def test_a_failure_while_writing_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OverlandError("the disk is full")

    monkeypatch.setattr(quantize_module, "write_json", full_disk)
    with pytest.raises(OverlandError, match="disk is full"):
        quantize_folder(folder, tmp_path / "dst")
    assert not list(tmp_path.iterdir())
