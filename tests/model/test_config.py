"""A config that is no K3 decoder is refused by the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY

from overland.errors import UsageError
from overland.model import PRESETS, DecoderConfig, preset


def test_a_config_survives_its_file() -> None:
    config = DecoderConfig.from_dict(TINY)
    again = DecoderConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert [again.is_full_attention(i) for i in range(4)] == [False, True, False, True]
    assert [again.is_moe(i) for i in range(4)] == [False, True, True, True]


def test_unknown_fields_of_a_released_config_are_kept() -> None:
    config = DecoderConfig.from_dict({**TINY, "auto_map": {"AutoConfig": "x"}})
    assert config.to_dict()["auto_map"] == {"AutoConfig": "x"}


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": -16}, "hidden_size"),
        ({"num_experts_per_token": 7}, "num_experts_per_token = 7 exceeds num_experts = 6"),
        ({"hidden_act": "silu"}, "hidden_act = 'silu'.*'situ'"),
        ({"tie_word_embeddings": "perhaps"}, "tie_word_embeddings = 'perhaps'"),
        ({"num_hidden_layers": 5}, "linear_attn_config.*cover 1..5.*5"),
        ({"linear_attn_config": {**TINY["linear_attn_config"], "kda_layers": [1, 2, 3]}}, "linear_attn_config.*2"),  # type: ignore[dict-item]
        ({"linear_attn_config": {"num_heads": 2, "head_dim": 8}}, r"linear_attn_config\.full_attn_layers"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"^here.json: .*{named}") as caught:
        DecoderConfig.from_dict({**TINY, **changes}, source="here.json")
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    assert Path("nano").name in PRESETS
    with pytest.raises(UsageError, match="'nanoo' is not a preset; valid: nano"):
        preset("nanoo")
    assert preset("nano", vocab_size=700).vocab_size == 700


def test_every_width_of_nano_that_mxfp4_or_a_head_touches_is_a_multiple_of_32() -> None:
    nano = preset("nano")
    assert nano.moe is not None
    assert nano.mla is not None
    assert nano.kda is not None
    assert nano.moe.latent is not None
    widths = (nano.hidden_size, nano.moe.latent, nano.moe.width, nano.mla.value_dim)
    assert all(width % 32 == 0 for width in (*widths, nano.mla.kv_lora_rank, nano.kda.head_dim))
