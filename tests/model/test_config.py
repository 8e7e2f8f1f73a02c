"""A config that is no K3 decoder is refused by the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TINY, random_ids, tiny, with_vision

from model.test_families import CASES
from overland.errors import UsageError
from overland.model import PRESETS, DecoderConfig, Packing, preset

LISTS: dict[str, Any] = TINY["linear_attn_config"]  # type: ignore[assignment]


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


def test_what_a_multimodal_config_says_around_its_parts_is_kept() -> None:
    fields = {
        **with_vision(activation_dtype="x"),
        "architectures": ["SomethingElse"],
        "model_type": "kimi_k31",
        "auto_map": {"AutoConfig": "x"},
    }
    config = DecoderConfig.from_dict(fields)
    written = json.loads(json.dumps(config.to_dict()))
    assert DecoderConfig.from_dict(written) == config
    assert {name: written[name] for name in ("architectures", "model_type", "auto_map")} == {
        name: fields[name] for name in ("architectures", "model_type", "auto_map")
    }
    assert written["vision_config"]["activation_dtype"] == "x"
    assert "auto_map" not in written["text_config"]


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"vt_hidden_size": None}, "vision_config.vt_hidden_size"),
        ({"patch_size": 0}, "vision_config.patch_size = 0"),
        ({"merge_kernel_size": [2]}, "vision_config.merge_kernel_size"),
        ({"merge_kernel_size": [2, 0]}, "vision_config.merge_kernel_size = 0"),
        ({"norm_type": "layernorm"}, "vision_config.norm_type = 'layernorm' is not supported.*valid: 'rmsnorm'"),
        ({"attn_bias": True}, "vision_config.attn_bias = True"),
        ({"text_hidden_size": 32}, "vision_config: text_hidden_size = 32; valid: 16"),
        ({"mm_hidden_size": 8}, "vision_config: mm_hidden_size = 8; valid: 12"),
        ({"qkv_hidden_size": 12}, "qkv_hidden_size = 12 is not vt_num_attention_heads = 2 times a multiple of 4"),
    ],
)
def test_a_wrong_field_of_the_vision_part_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"^here.json: .*{named}") as caught:
        DecoderConfig.from_dict(with_vision(**changes), source="here.json")
    assert "\n" not in str(caught.value)


def test_a_vision_part_without_its_fields_or_token_is_named() -> None:
    whole = with_vision()
    parts: dict[str, Any] = whole["vision_config"]  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"vision_config\.vt_num_hidden_layers is missing; kimi_k3 needs it"):
        DecoderConfig.from_dict({**whole, "vision_config": {k: v for k, v in parts.items() if "layers" not in k}})
    with pytest.raises(UsageError, match="media_placeholder_token_id is missing"):
        DecoderConfig.from_dict({name: whole[name] for name in ("text_config", "vision_config")})
    with pytest.raises(UsageError, match=r"media_placeholder_token_id = 32 is not a token; valid: 0 to 31"):
        DecoderConfig.from_dict({**whole, "media_placeholder_token_id": 32})
    with pytest.raises(UsageError, match="vision_config is a list, not an object"):
        DecoderConfig.from_dict({**whole, "vision_config": [1]})


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"model_type": "qwen3_mo"}, "model_type = 'qwen3_mo' is not a family.*Did you mean qwen3_moe"),
        ({**CASES["deepseek_v3"], "kv_lora_rank": "deep"}, "kv_lora_rank = 'deep'"),
        ({k: v for k, v in CASES["deepseek_v3"].items() if k != "v_head_dim"}, "v_head_dim is missing"),
        ({**CASES["deepseek_v3"], "n_group": 3}, "expert groups = 3 does not divide num_experts = 8"),
        ({**CASES["deepseek_v3"], "topk_group": 5}, "topk_group = 5 exceeds"),
        ({**CASES["deepseek_v3"], "scoring_func": "softmax"}, "scoring_func = 'softmax'.*valid: 'sigmoid'"),
        ({**CASES["llama"], "num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide"),
        ({**CASES["llama"], "num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({**CASES["llama"], "rope_scaling": {"rope_type": "longrope"}}, "rope type = 'longrope'.*valid: default"),
        ({**CASES["llama"], "hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported for llama"),
        ({**CASES["gpt_oss"], "layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        ({**CASES["deepseek_v32"], "index_topk": 0}, "index_topk = 0"),
        ({**TINY, "dsa_config": {"num_heads": 4, "head_dim": 8, "topk": 4, "dsa_layers": [1]}}, r"dsa_layers \[1\]"),
        ({**TINY, "linear_attn_config": {**LISTS, "kda_layers": [1, 3, 3]}}, r"names a layer twice: \[3\]"),
        ({**TINY, "linear_attn_config": None}, "linear_attn_config"),
        ({"text_config": [1]}, "text_config is a list"),
        ({**CASES["llama"], "rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({**CASES["llama"], "rms_norm_eps": -1e-5}, "rms_norm_eps = -1e-05.*greater than 0"),
        ({**CASES["llama"], "rope_theta": 0}, "rope_theta = 0"),
        ({**CASES["llama"], "rope_scaling": "yarn"}, "rope_scaling = 'yarn'; valid: null, or an object"),
        ({**CASES["llama"], "num_attention_heads": 0}, "num_attention_heads = 0; valid"),
        ({**CASES["llama"], "num_attention_heads": True}, "num_attention_heads = True"),
        ({**CASES["llama"], "num_key_value_heads": -1}, "num_key_value_heads = -1"),
        ({**CASES["llama"], "num_hidden_layers": 2**70}, f"num_hidden_layers = {2**70} .*valid: 1 to 10000"),
        ({**CASES["llama"], "vocab_size": 2**70}, f"vocab_size = {2**70}"),
        ({**CASES["qwen3_moe"], "decoder_sparse_step": 0}, "decoder_sparse_step = 0; valid: a whole number from 1"),
        (
            {**CASES["qwen3_moe"], "mlp_only_layers": [9]},
            r"mlp_only_layers = \[9\]; valid: a list of layers from 0 to 2",
        ),
        ({**CASES["gpt_oss"], "layer_types": ["full_attention", "slidng", "x"]}, r"layer_types\[1\] = 'slidng'"),
        ({**TINY, "linear_attn_config": {**LISTS, "kda_layers": "13"}}, "kda_layers = '13'; valid: a list of layers"),
        ({**TINY, "linear_attn_config": {**LISTS, "gate_lower_bound": 5.0}}, "gate_lower_bound = 5.0.*less than 0"),
        ({k: v for k, v in CASES["llama"].items() if k != "model_type"}, "model_type is missing; valid: deepseek_v3"),
    ],
)
def test_a_wrong_field_of_any_family_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"^here.json: .*{named}") as caught:
        DecoderConfig.from_dict(fields, source="here.json")
    assert "\n" not in str(caught.value)


def test_more_tokens_than_the_context_holds_are_refused() -> None:
    model = tiny(torch.float32)
    with pytest.raises(UsageError, match="context = 97 tokens exceeds max_position_embeddings = 96"):
        model(random_ids(1, 97))
    with torch.no_grad():
        cache = model.new_cache(1)
        model(random_ids(1, 90), cache=cache)
        with pytest.raises(UsageError, match="context = 97 tokens"):
            model(random_ids(1, 7), cache=cache)
        with pytest.raises(UsageError, match="context = 97 tokens"):
            model(random_ids(1, 9), cache=cache, packing=Packing(lengths=torch.tensor([7])))
        assert cache.lengths.tolist() == [90]
        model(random_ids(1, 9), cache=cache, packing=Packing(lengths=torch.tensor([6])))
        assert cache.lengths.tolist() == [96]


def test_an_unknown_preset_lists_the_known_ones() -> None:
    assert Path("nano").name in PRESETS
    with pytest.raises(UsageError, match=r"'nanoo' is not a preset; valid: .*nano"):
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
