"""What `model info` counts is what a real model has and a real cache holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import TINY, drawn, random_ids, tiny, with_vision

from model.test_families import CASES
from overland.errors import BrokenFileError, UsageError
from overland.model import Cache, Decoder, DecoderConfig, save_model
from overland.model.info import cache_bytes, count_components, describe


def held(cache: Cache) -> int:
    """Bytes of a cache's rows as they are needed: MLA's spare slots left out."""
    length = int(cache.lengths.max())
    total = 0
    for layer in cache.layers:
        for name, value in vars(layer).items():
            kept = value[:, :length] if name == "latents" else value
            total += kept.numel() * kept.element_size()
    return total


def test_every_parameter_is_counted_once() -> None:
    model = tiny(torch.float32)
    stored = sum(value.numel() for value in model.state_dict().values())  # selection biases too
    assert sum(count_components(model).values()) == stored
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert count_components(model)["routed experts"] == routed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_bytes_are_those_of_a_cache_that_was_filled(dtype: torch.dtype) -> None:
    model = tiny(torch.float32).to(dtype)
    per_token, per_sequence = cache_bytes(model)
    for tokens in (3, 7):
        cache = model.new_cache(1)
        with torch.inference_mode():
            model(random_ids(1, tokens), cache=cache)
        assert held(cache) == per_sequence + tokens * per_token


def test_a_folder_is_described_like_the_model_that_it_holds(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    save_model(model, tmp_path)
    found = describe(tmp_path)
    config = DecoderConfig.from_dict(TINY)
    assert found.parameters == sum(value.numel() for value in model.state_dict().values())
    assert config.moe is not None
    unchosen = found.components["routed experts"] * (1 - config.moe.top_k / config.moe.experts)
    assert found.active == pytest.approx(found.parameters - unchosen, abs=1)
    assert found.context == config.max_position_embeddings


def test_vision_is_counted_by_component_apart_from_text(tmp_path: Path) -> None:
    model = drawn(with_vision(), torch.float32)
    save_model(model, tmp_path)
    found = describe(tmp_path)
    assert found.vision is not None
    tower = {n: v.numel() for n, v in model.state_dict().items() if n.startswith(("vision_tower.", "mm_projector."))}
    assert sum(found.vision.values()) == sum(tower.values())
    assert found.vision["projector"] == sum(count for name, count in tower.items() if name.startswith("mm_projector."))
    assert found.parameters == sum(v.numel() for v in model.state_dict().values()) - sum(tower.values())
    assert describe("nano").vision is None


def test_latents_take_half_the_bytes_in_a_half_wide_type() -> None:
    found = describe("nano", "bfloat16")
    assert found.cache_bytes_per_token * 2 == describe("nano", "float32").cache_bytes_per_token


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dtype = 'int8'"):
        describe("nano", "int8")
    with pytest.raises(UsageError, match="context = 4097 tokens; valid: 1 to 4096 for nano"):
        describe("nano", at_context=4097)
    with pytest.raises(UsageError, match="neither a folder"):
        describe("nanno")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BrokenFileError, match=r"config\.json: cannot be read"):
        describe(tmp_path)


def test_a_tied_head_is_the_embedding_and_prediction_blocks_are_counted_apart() -> None:
    tied = DecoderConfig.from_dict(CASES["llama tied, stretched"])
    components = count_components(Decoder(tied))
    assert "output head" not in components
    assert sum(components.values()) == sum(p.numel() for p in Decoder(tied).parameters())
    ahead = tiny(num_nextn_predict_layers=2)
    found = count_components(ahead)
    assert found["multi-token prediction"] == sum(v.numel() for v in ahead.model.mtp.state_dict().values())
    assert sum(found.values()) == sum(v.numel() for v in ahead.state_dict().values())
