"""Full-size models on the meta device: K3 against the table of its release, others against Transformers' classes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch

from overland.model import PRESETS, Decoder, DecoderConfig, preset
from overland.model.families import FAMILIES
from overland.model.families.kimi_vision import K3_VISION
from overland.model.families.tensors import header_bytes, released_header
from overland.model.info import describe

Shapes = dict[str, tuple[str, tuple[int, ...]]]


def header(name: str, mxfp4: bool = False, **changes: Any) -> Shapes:
    config = preset(name, **changes)
    with torch.device("meta"):
        model = Decoder(config)
    return released_header(FAMILIES[config.family], config, model.state_dict(), mxfp4)


def k3_table(sparse: bool = False) -> Shapes:
    """reference/architecture.md §14.1, written out; A_log has its 96 real heads."""
    D, P = 7168, 12288
    out: Shapes = {}

    def add(dtype: str, at: str, **shapes: list[int]) -> None:
        out.update({f"{at}{name.replace('__', '.')}": (dtype, tuple(shape)) for name, shape in shapes.items()})

    add("BF16", "", model__embed_tokens__weight=[163840, D], lm_head__weight=[163840, D], model__norm__weight=[D])
    add("BF16", "model.", output_attn_res_norm__weight=[D], output_attn_res_proj__weight=[1, D])
    full = {*range(3, 92, 4), 92}
    for layer in range(93):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            add("BF16", at, **{f"{norm}__weight": [D]})
        add("BF16", at, self_attention_res_proj__weight=[1, D], mlp_res_proj__weight=[1, D])
        mixer = f"{at}self_attn."
        add("BF16", mixer, g_proj__weight=[P, D], o_proj__weight=[D, P])
        if layer not in full:
            add("BF16", mixer, q_proj__weight=[P, D], k_proj__weight=[P, D], v_proj__weight=[P, D])
            add("BF16", mixer, f_a_proj__weight=[128, D], f_b_proj__weight=[P, 128], b_proj__weight=[96, D])
            add("F32", mixer, **{f"{x}_conv1d__weight": [P, 1, 4] for x in "qkv"})
            add("F32", mixer, A_log=[96], dt_bias=[P], o_norm__weight=[128])
        else:
            add("BF16", mixer, q_a_proj__weight=[1536, D], q_a_layernorm__weight=[1536], q_b_proj__weight=[18432, 1536])
            add("BF16", mixer, kv_a_proj_with_mqa__weight=[576, D], kv_a_layernorm__weight=[512])
            add("BF16", mixer, kv_b_proj__weight=[24576, 512])
            if sparse:
                add("BF16", f"{mixer}indexer.", wq_b__weight=[4096, 1536], wk__weight=[128, D])
                add("BF16", f"{mixer}indexer.", weights_proj__weight=[32, D], k_norm__weight=[128], k_norm__bias=[128])
        if layer == 0:
            add("BF16", f"{at}mlp.", gate_proj__weight=[33792, D], up_proj__weight=[33792, D])
            add("BF16", f"{at}mlp.", down_proj__weight=[D, 33792])
            continue
        moe = f"{at}block_sparse_moe."
        add("BF16", moe, gate__weight=[896, D], routed_expert_down_proj__weight=[3584, D])
        add("BF16", moe, routed_expert_norm__weight=[3584], routed_expert_up_proj__weight=[D, 3584])
        add("F32", moe, gate__e_score_correction_bias=[896])
        shared = f"{moe}shared_experts."
        add("BF16", shared, gate_proj__weight=[6144, D], up_proj__weight=[6144, D], down_proj__weight=[D, 6144])
        for e in range(896):
            for w in ("w1", "w3"):
                out[f"{moe}experts.{e}.{w}.weight_packed"] = ("U8", (3072, 1792))
                out[f"{moe}experts.{e}.{w}.weight_scale"] = ("U8", (3072, 112))
            out[f"{moe}experts.{e}.w2.weight_packed"] = ("U8", (3584, 1536))
            out[f"{moe}experts.{e}.w2.weight_scale"] = ("U8", (3584, 96))
    return {f"language_model.{name}": tensor for name, tensor in out.items()} | vision_table()


def vision_table() -> Shapes:
    """reference/architecture.md §10, written out."""
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (1024, 3, 14, 14),
        "vision_tower.patch_embed.pos_emb.weight": (64, 64, 1024),
        "vision_tower.encoder.final_layernorm.weight": (1024,),
        "mm_projector.proj.0.weight": (4096, 4096),
        "mm_projector.proj.2.weight": (7168, 4096),
        "mm_projector.post_norm.weight": (7168,),
    }
    for block in range(27):
        at = f"vision_tower.encoder.blocks.{block}."
        shapes |= {f"{at}norm0.weight": (1024,), f"{at}norm1.weight": (1024,), f"{at}wo.weight": (1024, 1536)}
        shapes |= {f"{at}wqkv.weight": (4608, 1024), f"{at}mlp.fc0.weight": (4096, 1024)}
        shapes[f"{at}mlp.fc1.weight"] = (1024, 4096)
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def test_k3_has_the_released_tensors() -> None:
    found = header("k3", mxfp4=True)
    assert found == k3_table()
    assert len(found) == 497_220
    padding = 69 * (128 - 96) * 4  # as released, A_log is padded to 128 heads
    assert header_bytes(found) + padding == 1_560_860_324_864
    assert header_bytes(vision_table()) == 894_717_952
    sparse = header("k3-dsa", mxfp4=True)
    assert sparse == k3_table(sparse=True)


@pytest.mark.parametrize("name, mixer, architecture", [
    ("k3", "mla", "KimiK3ForConditionalGeneration"),
    ("k3-dsa", "dsa", "KimiK31ForConditionalGeneration"),
])  # fmt: skip
def test_k3s_config_is_written_as_released_and_read_back(name: str, mixer: str, architecture: str) -> None:
    config = preset(name)
    assert [layer.mixer for layer in config.layers].count(mixer) == 24
    assert [i for i, layer in enumerate(config.layers) if layer.mixer == mixer][-3:] == [87, 91, 92]
    assert [layer.mixer for layer in config.layers].count("kda") == 69
    fields = json.loads(json.dumps(config.to_dict()))
    assert fields["architectures"] == [architecture]
    assert fields["model_type"] == "kimi_k3"
    assert fields["text_config"]["model_type"] == "kimi_linear"
    assert fields["media_placeholder_token_id"] == 163605
    released = {**K3_VISION, "vt_norm_eps": 1.1920929e-07}
    assert fields["vision_config"] == released
    assert DecoderConfig.from_dict(fields) == config


def test_info_of_k3_is_exact_quick_and_small() -> None:
    code = (
        "import resource, sys\nfrom overland.cli import main\n"
        "try: main(['model', 'info', 'k3', '--json', '--dtype', 'bfloat16'])\n"
        "except SystemExit: pass\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    info = json.loads(done.stdout)
    assert info["parameters"] == 2_779_484_476_000
    assert round(info["active_without_input_embedding"] / 1e9, 2) == 104.19
    assert round(info["active"] / 1e9, 2) == 105.36
    assert info["release"]["bytes"] == 1_560_860_324_864
    assert info["release"]["text_bytes"] == 1_559_965_606_912
    assert info["release"]["vision_bytes"] == 894_717_952
    assert info["release"]["tensors"] == 497_220
    assert info["cache_bytes_per_token"] == 24 * 1152
    assert info["cache_bytes_at_context"] == info["cache_bytes_per_sequence"] + 24 * 1152 * 2**20
    assert sum(info["components"].values()) == info["parameters"]
    assert info["release"]["vision_parameters"] == sum(info["vision"].values()) == 447_358_976
    assert info["vision"]["projector"] == 46_144_512
    assert int(done.stderr.split()[-1]) < 2_000_000  # kilobytes


@pytest.mark.parametrize("name, total, active", [
    ("deepseek-v3", 671.03, 37.55),
    ("mixtral-8x7b", 46.70, 12.88),
    ("kimi-linear-48b-a3b", 49.12, 3.48),
])  # fmt: skip
def test_published_sizes(name: str, total: float, active: float) -> None:
    info = describe(name)
    trunk = info.parameters - info.components.get("multi-token prediction", 0)
    assert round(trunk / 1e9, 2) == total
    assert round(info.active / 1e9, 2) == active


@pytest.mark.parametrize("name, tenfold", [("nano", 1e6), ("micro", 1e7), ("mini", 1e8), ("small", 1e9)])
def test_small_presets_are_what_their_names_say(name: str, tenfold: float) -> None:
    info = describe(name)
    counted = info.active if name == "nano" else info.parameters
    assert 0.9 * tenfold < counted < 1.1 * tenfold
    config = preset(name)
    assert config.is_full_attention(config.num_hidden_layers - 1)
    assert info.bytes_mxfp4 is not None


@pytest.mark.parametrize("name, changes", [
    ("deepseek-v3", {"num_nextn_predict_layers": 0}),
    ("deepseek-v3.2", {"num_nextn_predict_layers": 0}),
    ("mixtral-8x7b", {}),
    ("kimi-linear-48b-a3b", {}),
])  # fmt: skip
def test_names_and_shapes_are_those_of_transformers(name: str, changes: dict[str, Any]) -> None:
    """Its stacked experts and convolutions undone, as it does itself when it saves."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    fields = {**PRESETS[name], **changes}
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields))
    w1, w3, w2 = ("w1", "w3", "w2") if name[0] in "mk" else ("gate_proj", "up_proj", "down_proj")
    wanted: dict[str, tuple[int, ...]] = {}
    for key, value in theirs.state_dict().items():
        if name[0] in "mk":
            for part in ("experts", "gate", "shared_experts"):
                key = key.replace(f".mlp.{part}.", f".block_sparse_moe.{part}.")
        key = key.replace(".forget_gate.", ".")
        base, shape = key.rpartition(".")[0], tuple(value.shape)
        if key.endswith("experts.gate_up_proj"):
            for e in range(shape[0]):
                wanted[f"{base}.{e}.{w1}.weight"] = wanted[f"{base}.{e}.{w3}.weight"] = (shape[1] // 2, shape[2])
        elif key.endswith("experts.down_proj"):
            wanted |= {f"{base}.{e}.{w2}.weight": shape[1:] for e in range(shape[0])}
        elif key.endswith("self_attn.conv1d.weight"):
            at = base.removesuffix(".conv1d")
            wanted |= {f"{at}.{x}_conv1d.weight": (shape[0] // 3, *shape[1:]) for x in "qkv"}
        else:
            wanted[key] = shape
    found = {key: shape for key, (_, shape) in header(name, **changes).items()}
    assert found == wanted
    assert sum(map(math.prod, found.values())) == sum(v.numel() for v in theirs.state_dict().values())
