"""What the planner knows of models, against Transformers on the meta device, released counts and published FLOPs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from overland.errors import UsageError
from overland.model import Decoder, preset
from overland.parallel.planner import architecture, flops_per_token, model_names, truncated
from overland.parallel.planner.models import _public_configs, from_fields

# Released checkpoints, without MTP (model cards and safetensors indices; K3: reference without its selection biases).
RELEASED = {
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "k3": 2_779_484_476_000 - 92 * 896,
}
ROUNDED = {  # billions, as the makers round them
    "deepseek-v2": (236, 21),
    "deepseek-v3": (671, 37),
    "kimi-k2": (1026, 32),
    "mixtral-8x22b": (141, 39),
    "nemotron3-nano": (31.6, 3.6),
    "nemotron3-super": (120, 12.7),
    "qwen3-next-80b-a3b": (80, 3.9),
    "k3": (2780, 105),
}
IMPLIED = {  # GFLOP a token at (tokens, with MTP), from tokens/s and TFLOP/s of the published runs
    ("deepseek-v3", 4096, True): 260.0,
    ("deepseek-v3", 4096, False): 249.6,
    ("qwen3-235b-a22b", 4096, True): 148.0,
    ("qwen3-30b-a3b", 4096, True): 23.0,
    ("kimi-k2", 4096, True): 204.5,
    ("gpt-oss-120b", 4096, True): 32.6,
    ("llama3-405b", 8192, True): 2520.0,
    ("llama3-70b", 8192, True): 449.0,
    ("llama3-8b", 8192, True): 51.47,
    ("nemotron3-super", 8192, True): 84.7,
    ("nemotron3-ultra", 8192, True): 365.1,
}


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_of_the_released_checkpoint(name: str) -> None:
    assert architecture(name).parameters() == RELEASED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_totals_and_active_parameters_are_what_the_maker_says(name: str) -> None:
    total, active = ROUNDED[name]
    found = architecture(name)
    assert found.parameters() / 1e9 == pytest.approx(total, rel=0.012)
    assert found.active() / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(("name", "seq", "mtp"), IMPLIED)
def test_flops_per_token_are_those_that_published_runs_imply(name: str, seq: int, mtp: bool) -> None:
    assert flops_per_token(architecture(name), seq, mtp) / 1e9 == pytest.approx(IMPLIED[name, seq, mtp], rel=0.02)


def cut(fields: dict[str, Any]) -> dict[str, Any]:
    """The config with few layers but every kind of them, so that the reference is quick to build."""
    if "pattern" in fields:
        return {**fields, "pattern": "M*EM", "mtp_depth": 0}
    return {**fields, "num_hidden_layers": 4, "num_nextn_predict_layers": 0}


def in_transformers(fields: dict[str, Any]) -> int:
    """Parameters of the class that Transformers has for this config."""
    known = {key: value for key, value in fields.items() if key not in ("model_type", "pattern", "mtp_depth")}
    if "pattern" in fields:
        known |= {"hybrid_override_pattern": fields["pattern"], "n_shared_experts": 1}
    config = AutoConfig.for_model(fields["model_type"], **known, tie_word_embeddings=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in _public_configs() if name != "k3"])
def test_weights_are_those_of_transformers_class(name: str) -> None:
    fields = cut(_public_configs()[name])
    assert from_fields(name, fields).parameters() == in_transformers(fields)


def test_a_k3_family_preset_is_counted_as_its_own_modules() -> None:
    with torch.device("meta"):
        model = Decoder(preset("nano"))
    assert architecture("nano").parameters() == sum(parameter.numel() for parameter in model.parameters())


def test_names_match_whatever_their_case_and_punctuation() -> None:
    for written, name in [
        ("DeepSeekV3", "deepseek-v3"),
        ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
        ("LLAMA3.1_405B", "llama3-405b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Kimi-K3", "k3"),
    ]:
        assert architecture(written).name == name


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--model = 'llama3-9b'.*nearest: .*llama3-8b"):
        architecture("llama3-9b")


def test_a_cut_model_keeps_its_first_layer_and_its_last_ones() -> None:
    model = truncated(architecture("deepseek-v3"), 4)
    assert [layer[1].kind for layer in model.layers] == ["dense", "MoE", "MoE", "MoE"]
    with pytest.raises(UsageError, match=r"--layers = 99 is outside 1\.\.61"):
        truncated(architecture("deepseek-v3"), 99)


def test_every_name_has_an_architecture() -> None:
    for name in model_names():
        assert architecture(name).parameters() > 0
