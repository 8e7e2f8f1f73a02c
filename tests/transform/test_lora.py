"""LoRA beside a model: what is trained, what is merged, and files that PEFT reads and writes (run live where it is)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from overland.errors import BrokenFileError, UsageError
from overland.model import Decoder, initialise, preset
from overland.train.optim import adamw
from overland.transform import (
    LoRASection,
    apply_lora,
    load_lora,
    merge_lora,
    remove_lora,
    save_lora,
    unmerge_lora,
)
from overland.transform.lora import lora_layers
from tests.rl.peers import PYTHON, installed

from .lora_peer import net, question

SECTION = LoRASection(rank=3, alpha=6.0)


def moved(model: nn.Module) -> None:
    """Give every adapter something to say."""
    g = torch.Generator().manual_seed(3)
    for _, layer in lora_layers(model):
        layer.lora_B.data.copy_(torch.randn(layer.lora_B.shape, generator=g))


def test_an_adapter_changes_nothing_before_the_first_step() -> None:
    assert torch.equal(apply_lora(net(), SECTION)(question()), net()(question()))


def test_only_the_adapter_is_trained() -> None:
    model = apply_lora(net(), SECTION)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = adamw(model, 0.1)
    for _ in range(2):
        model(question()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {f"blocks.{i}.{n}.lora_{x}" for i in (0, 1) for n in ("q_proj", "o_proj") for x in "AB"}


def test_merging_computes_the_same_and_unmerging_restores_every_bit() -> None:
    model = apply_lora(net(), SECTION)
    moved(model)
    apart = model(question())
    assert not torch.allclose(apart, net()(question()), atol=1e-2)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    merge_lora(model)
    merge_lora(model)  # twice is once
    assert torch.allclose(model(question()), apart, atol=1e-5)
    unmerge_lora(model)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert torch.equal(model(question()), apart)


@pytest.mark.parametrize("merge", [True, False])
def test_a_removed_adapter_leaves_a_plain_model(merge: bool) -> None:
    model = apply_lora(net(), SECTION)
    moved(model)
    wanted = model(question()) if merge else net()(question())
    plain = remove_lora(model, merge=merge)
    assert plain.state_dict().keys() == net().state_dict().keys()
    assert all(p.requires_grad for p in plain.parameters())
    assert not any(True for _ in lora_layers(plain))
    assert torch.allclose(plain(question()), wanted, atol=1e-5 if merge else 0)


def test_bfloat16_weights_are_merged_in_float32() -> None:
    model = apply_lora(net().bfloat16(), SECTION)
    moved(model)
    layer = next(layer for _, layer in lora_layers(model))
    exact = layer.weight.float() + layer.scale * (layer.lora_B.float() @ layer.lora_A.float())
    assert torch.equal(layer.merged_weight(), exact.bfloat16())


def test_a_decoder_is_adapted_by_names_and_generates_with_its_cache() -> None:
    torch.manual_seed(0)
    decoder = initialise(Decoder(preset("nano", vocab_size=64, hidden_size=64, num_experts=4, num_experts_per_token=2)))
    apply_lora(decoder, LoRASection(rank=2, targets=("o_proj", "model.layers.*.q_*")))
    names = {path.rsplit(".", 1)[-1] for path, _ in lora_layers(decoder)}
    assert {"o_proj", "q_proj"} <= names <= {"o_proj", "q_proj", "q_a_proj", "q_b_proj"}
    moved(decoder)
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))
    cache = decoder.new_cache(1)
    parts = [decoder(ids[:, a:b], cache=cache).logits for a, b in ((0, 5), (5, 12))]
    assert torch.allclose(torch.cat(parts, dim=1), decoder(ids).logits, atol=1e-4)


def test_a_saved_adapter_comes_back_bit_for_bit_in_pefts_layout(tmp_path: Path) -> None:
    model = apply_lora(net(), SECTION)
    moved(model)
    save_lora(model, SECTION, tmp_path, base="somewhere/model")
    with safe_open(tmp_path / "adapter_model.safetensors", framework="pt") as file:
        keys = set(file.keys())
    assert "base_model.model.blocks.0.q_proj.lora_A.weight" in keys
    assert len(keys) == 8
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 3, 6.0)
    assert torch.equal(load_lora(net(), tmp_path)(question()), model(question()))


def test_what_is_wrong_is_named_before_the_model_is_touched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'q_prj' names no Linear of the model; did you mean q_proj\?"):
        apply_lora(net(), LoRASection(targets=("o_proj", "q_prj")))
    with pytest.raises(UsageError, match="adapted already"):
        apply_lora(apply_lora(net(), SECTION), SECTION)
    with pytest.raises(UsageError, match=r"adapter_config\.json is missing"):
        load_lora(net(), tmp_path)
    model = apply_lora(net(), SECTION)
    save_lora(model, SECTION, tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    name = "base_model.model.blocks.1.o_proj.lora_B.weight"
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BrokenFileError, match=r"blocks\.1\.o_proj\.lora_B\.weight' is \[5, 3\], .* \[6, 3\]"):
        load_lora(net(), tmp_path)


@pytest.mark.skipif(not installed("peft"), reason="peft is not installed (tests/rl/peers.py says how)")
def test_peft_reads_our_adapter_and_we_read_peft_s(tmp_path: Path) -> None:
    model = apply_lora(net(), SECTION)
    moved(model)
    save_lora(model, SECTION, tmp_path / "ours")
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("lora_peer.py")), str(tmp_path)],
        env=clean | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = {name: torch.tensor(x) for name, x in json.loads((tmp_path / "answers.json").read_text()).items()}
    with torch.no_grad():
        assert (model(question()) - said["ours"]).abs().max() <= 1e-6
        assert (remove_lora(model)(question()) - said["ours_merged"]).abs().max() <= 1e-5
        assert (load_lora(net(), tmp_path / "theirs")(question()) - said["theirs"]).abs().max() <= 1e-5
