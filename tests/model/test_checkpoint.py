"""Model folders: K3's names on disk, nothing lost on the way, and a broken file is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import TINY, drawn, random_ids, tiny, with_vision

from model.test_families import CASES
from overland.errors import BrokenFileError, UsageError
from overland.model import Decoder, DecoderConfig, load_model, save_model
from overland.model.convert import convert_folder
from overland.model.vision.preprocess import Preprocessing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tiny(torch.float32), tmp_path / "model")
    return tmp_path / "model"


WIDE = ("A_log", "dt_bias", "o_norm.weight", "conv1d.weight", "e_score_correction_bias")  # fp32 in the released files


def test_a_round_trip_is_bit_equal(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    ids = random_ids(1, 9)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_half_precision_leaves_decays_convolutions_and_biases_wide(folder: Path, tmp_path: Path) -> None:
    whole, half = load_model(folder), load_model(folder, dtype=torch.bfloat16)
    for name, value in half.state_dict().items():
        dtype = torch.float32 if name.endswith(WIDE) else torch.bfloat16
        assert value.dtype == dtype, name
        assert torch.equal(value, whole.state_dict()[name].to(dtype)), name
    save_model(half, tmp_path / "half")
    again, ids = load_model(tmp_path / "half", dtype=torch.bfloat16), random_ids(1, 9)
    assert torch.equal(again(ids).logits, half(ids).logits)


def test_saving_twice_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_nano_has_the_released_names_and_shapes(tmp_path: Path) -> None:
    """Names and shapes written out from the released checkpoint's table (sizes of nano put in)."""
    D, P, V, Z, I = 128, 128, 640, 64, 64
    wanted = {
        "model.embed_tokens.weight": [V, D],
        "lm_head.weight": [V, D],
        "model.norm.weight": [D],
        "model.output_attn_res_norm.weight": [D],
        "model.output_attn_res_proj.weight": [1, D],
    }
    for layer in range(4):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            wanted[f"{at}.{norm}.weight"] = [D]
        for proj in ("self_attention_res_proj", "mlp_res_proj"):
            wanted[f"{at}.{proj}.weight"] = [1, D]
        if layer < 3:
            wanted |= {f"{at}.self_attn.{x}_proj.weight": [P, D] for x in "qkvg"}
            wanted |= {f"{at}.self_attn.{x}_conv1d.weight": [P, 1, 4] for x in "qkv"}
            wanted |= {
                f"{at}.self_attn.f_a_proj.weight": [32, D],
                f"{at}.self_attn.f_b_proj.weight": [P, 32],
                f"{at}.self_attn.b_proj.weight": [4, D],
                f"{at}.self_attn.A_log": [4],
                f"{at}.self_attn.dt_bias": [P],
                f"{at}.self_attn.o_norm.weight": [32],
                f"{at}.self_attn.o_proj.weight": [D, P],
            }
        else:
            wanted |= {
                f"{at}.self_attn.q_a_proj.weight": [32, D],
                f"{at}.self_attn.q_a_layernorm.weight": [32],
                f"{at}.self_attn.q_b_proj.weight": [4 * 64, 32],
                f"{at}.self_attn.kv_a_proj_with_mqa.weight": [64, D],
                f"{at}.self_attn.kv_a_layernorm.weight": [32],
                f"{at}.self_attn.kv_b_proj.weight": [4 * 64, 32],
                f"{at}.self_attn.g_proj.weight": [P, D],
                f"{at}.self_attn.o_proj.weight": [D, P],
            }
        if layer == 0:
            wanted |= {f"{at}.mlp.{x}_proj.weight": [384, D] for x in ("gate", "up")}
            wanted[f"{at}.mlp.down_proj.weight"] = [D, 384]
            continue
        moe = f"{at}.block_sparse_moe"
        wanted |= {
            f"{moe}.gate.weight": [16, D],
            f"{moe}.gate.e_score_correction_bias": [16],
            f"{moe}.routed_expert_down_proj.weight": [Z, D],
            f"{moe}.routed_expert_norm.weight": [Z],
            f"{moe}.routed_expert_up_proj.weight": [D, Z],
            f"{moe}.shared_experts.gate_proj.weight": [2 * I, D],
            f"{moe}.shared_experts.up_proj.weight": [2 * I, D],
            f"{moe}.shared_experts.down_proj.weight": [D, 2 * I],
        }
        for e in range(16):
            wanted |= {f"{moe}.experts.{e}.{w}.weight": [I, Z] for w in ("w1", "w3")}
            wanted[f"{moe}.experts.{e}.w2.weight"] = [Z, I]
    save_model(load_model("nano"), tmp_path)
    found = {name: list(value.shape) for name, value in load_file(tmp_path / "model.safetensors").items()}
    assert found == wanted


def test_the_released_multimodal_prefix_nesting_and_padded_decay_load(folder: Path) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    before = load_model(folder)
    tensors = {f"language_model.{name}": value for name, value in load_file(weights).items()}
    for name, value in tensors.items():
        if name.endswith("A_log"):
            tensors[name] = torch.nn.functional.pad(value, (0, 30))
    save_file(tensors, weights)
    config.write_text(json.dumps({"model_type": "kimi_k3", "text_config": json.loads(config.read_text())}))
    for name, value in load_model(folder).state_dict().items():
        assert torch.equal(value, before.state_dict()[name]), name


SPARSE = {"dsa_config": {"num_heads": 2, "head_dim": 8, "topk": 4, "k_norm_eps": 1e-5, "use_rope": False}}


@pytest.mark.parametrize("text", [{}, SPARSE], ids=["K3", "K3.1"])
def test_text_and_vision_are_saved_as_released_and_read_back(tmp_path: Path, text: dict[str, object]) -> None:
    model = drawn(with_vision(text), torch.float32)
    save_model(model, tmp_path, shard_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    tower = {name for name in index if name.startswith(("vision_tower.", "mm_projector."))}
    assert len(tower) == 2 + 2 * 6 + 1 + 3
    assert {name.split(".")[0] for name in index.keys() - tower} == {"language_model"}
    assert ("language_model.model.layers.1.self_attn.indexer.wq_b.weight" in index) == bool(text)
    again = load_model(tmp_path)
    assert again.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    half = load_model(tmp_path, torch.bfloat16)
    assert half.mm_projector is not None
    assert half.mm_projector.post_norm.weight.dtype == torch.bfloat16


def test_the_released_way_to_patches_goes_along_and_comes_back(tmp_path: Path) -> None:
    model = drawn(with_vision(), torch.float32)
    save_model(model, tmp_path / "src")
    file = tmp_path / "src" / "preprocessor_config.json"
    assert json.loads(file.read_text()) == {
        "media_proc_cfg": {
            "patch_size": 2,
            "merge_kernel_size": 2,
            "in_patch_limit": 65536,
            "patch_limit_on_one_side": 512,
            "fixed_output_tokens": None,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }
    }
    assert Preprocessing.of_folder(tmp_path / "src", model.config.vision) == Preprocessing(patch=2)
    own = Preprocessing(patch=2, most_patches=99, std=(0.25, 0.5, 0.5), background="gray")
    file.write_text(json.dumps({**own.to_dict(), "auto_map": {"AutoImageProcessor": "theirs.py"}}))
    before = file.read_text()
    convert_folder(tmp_path / "src", tmp_path / "dst")
    save_model(model, tmp_path / "src")
    for folder in ("src", "dst"):  # what is there is kept
        assert (tmp_path / folder / file.name).read_text() == before
        assert Preprocessing.of_folder(tmp_path / folder, model.config.vision) == own
    file.write_text(json.dumps(Preprocessing().to_dict()))
    for write in (
        lambda: save_model(model, tmp_path / "src"),
        lambda: convert_folder(tmp_path / "src", tmp_path / "x"),
    ):
        with pytest.raises(
            UsageError, match=r"patch_size = 14, merge_kernel_size = \[2, 2\]; valid: 2, \[2, 2\], as in"
        ):
            write()
    assert not (tmp_path / "x").exists()
    save_model(tiny(torch.float32), tmp_path / "text")
    assert not (tmp_path / "text" / file.name).exists()


def test_a_wrong_tensor_of_the_tower_is_named(tmp_path: Path) -> None:
    save_model(drawn(with_vision(), torch.float32), tmp_path)
    weights, name = tmp_path / "model.safetensors", "vision_tower.encoder.blocks.1.wo.weight"
    tensors = load_file(weights)
    for broken, message in (
        ({n: v for n, v in tensors.items() if n != name}, f"'{name}' is missing"),
        ({**tensors, name: tensors[name].T.contiguous()}, rf"'{name}' has shape \[16, 12\], .* \[12, 16\]"),
        (
            {**tensors, "vision_tower.extra": tensors[name].clone()},
            "'vision_tower.extra' is not a tensor of this model",
        ),
    ):
        save_file(broken, weights)
        with pytest.raises(BrokenFileError, match=message):
            load_model(tmp_path)


NAME, STRAY = "model.layers.1.self_attn.q_b_proj.weight", "model.layers.9.norm.weight"


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda t: t.pop(NAME), f"'{NAME}' is missing"),
        (lambda t: t.update({NAME: t[NAME][:-1].clone()}), rf"'{NAME}' has shape \[15, 8\], the config .* \[16, 8\]"),
        (lambda t: t.update({NAME: t[NAME] * float("nan")}), f"'{NAME}' holds values that are not finite"),
        (lambda t: t.update({STRAY: torch.ones(3)}), f"'{STRAY}' is not a tensor"),
        (lambda t: t.update({"model.layers.0.self_attn.A_log": torch.tensor(0.0)}), r"A_log' has shape \[\]"),
    ],
)
def test_a_wrong_tensor_is_named(folder: Path, damage: object, message: str) -> None:
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    damage(tensors)  # type: ignore[operator]
    save_file(tensors, weights)
    with pytest.raises(BrokenFileError, match=message) as caught:
        load_model(folder)
    assert str(weights) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 7, 3000, -10])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(BrokenFileError, match=r"model\.safetensors: cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{", "[1, 2]", '"nano"', "\x00\x01"])
def test_a_broken_config_file_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BrokenFileError, match=r"config\.json: "):
        load_model(folder)


def test_what_is_neither_folder_nor_preset_says_what_is(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"neither a folder with config\.json nor a preset \(.*nano"):
        load_model(tmp_path / "nan0")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"model\.safetensors is missing"):
        load_model(folder)


def test_shards_and_their_index(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder)
    save_model(model, tmp_path / "sharded", shard_bytes=10_000)
    files = sorted(p.name for p in (tmp_path / "sharded").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert all((tmp_path / "sharded" / name).stat().st_size < 20_000 for name in files)
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    whole = load_file(folder / "model.safetensors")
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    again = load_model(tmp_path / "sharded")
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    (tmp_path / "sharded" / files[1]).unlink()
    with pytest.raises(BrokenFileError, match=rf"index\.json: names '{files[1]}', which is not a file"):
        load_model(tmp_path / "sharded")


def test_saving_again_in_other_files_leaves_none_of_the_older_ones(folder: Path) -> None:
    newer = tiny(torch.float32, seed=1)
    for size in (10_000, 5_000, 10**9):  # from one file to some, to more, to one
        save_model(newer, folder, shard_bytes=size)
        assert torch.equal(load_model(folder).lm_head.weight, newer.lm_head.weight)
        index = folder / "model.safetensors.index.json"
        files = json.loads(index.read_text())["weight_map"].values() if size < 10**9 else ["model.safetensors"]
        assert {file.name for file in folder.glob("model*.safetensors")} == set(files)
        assert index.exists() == (size < 10**9)
        newer = tiny(torch.float32, seed=size)


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    save_model(tiny(torch.float32), tmp_path, shard_bytes=10_000)
    first, second = (load_file(file) for file in sorted(tmp_path.glob("model-*"))[:2])
    name = next(iter(first))
    save_file({**second, name: first[name].clone()}, sorted(tmp_path.glob("model-*"))[1])
    with pytest.raises(BrokenFileError, match=f"model-00002-of-.*: '{name}' is in model-00001-of-.* too"):
        load_model(tmp_path)


def test_a_value_that_the_type_asked_for_cannot_hold_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME][0, 0] = -7e4
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UsageError, match=rf"'{NAME}' holds 7e\+04, which is beyond dtype = float16; take bfloat16"):
        load_model(folder, torch.float16)
    assert load_model(folder, torch.bfloat16).state_dict()[NAME].isfinite().all()


def test_weights_of_a_wrong_type_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, NAME: tensors[NAME].to(torch.int32)}, folder / "model.safetensors")
    with pytest.raises(BrokenFileError, match=rf"'{NAME}' has type I32; valid: F64, F32, BF16, F16"):
        load_model(folder)
    save_file({**tensors, NAME: tensors[NAME].to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(BrokenFileError, match=rf"'{NAME}' has type F8_E4M3"):
        load_model(folder)


def test_loading_takes_the_model_and_a_shard(tmp_path: Path) -> None:
    """Peak memory of a process that loads ten shards, beyond what it had before; a second copy would be 2."""
    config = {**TINY, "hidden_size": 256, "vocab_size": 1024, "num_experts": 96, "routed_expert_hidden_size": 128}
    model = Decoder(DecoderConfig.from_dict({**config, "moe_intermediate_size": 96, "intermediate_size": 1024}))
    size = sum(value.nbytes for value in model.state_dict().values())
    assert size > 40e6
    save_model(model, tmp_path, shard_bytes=size // 10)
    del model
    save_model(tiny(torch.float32), tmp_path / "small")  # loaded first, so that what loading itself imports is there
    code = (
        "import sys\nfrom overland.model import load_model\n"
        "def high():\n    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) * 1024\n"
        "load_model(sys.argv[1] + '/small')\nbefore = high()\nload_model(sys.argv[1])\nprint(high() - before)"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc, which this system has not")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.25 * size


@pytest.mark.parametrize("place", [0.001, 0.3, 0.999])
def test_a_flipped_byte_in_the_header_is_found_and_one_in_a_weight_stays_finite(folder: Path, place: float) -> None:
    """The format has no checksum: damage to a weight is found only where it stops being finite."""
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[int(place * len(data))] ^= 0xFF
    weights.write_bytes(bytes(data))
    if place < 0.1:
        with pytest.raises(BrokenFileError, match=r"^[^\n]*model\.safetensors: [^\n]*$"):
            load_model(folder)
    else:
        assert all(torch.isfinite(value).all() for value in load_model(folder).state_dict().values())


def test_a_bias_that_the_familys_files_have_no_place_for_is_not_lost_silently(tmp_path: Path) -> None:
    model = Decoder(DecoderConfig.from_dict(CASES["mixtral"]))
    layer = model.model.layers[0]
    layer.block_sparse_moe.gate.e_score_correction_bias[1] = 0.5  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="e_score_correction_bias' is not zero, and the files of family mixtral"):
        save_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
