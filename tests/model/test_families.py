"""Every released family against Transformers' own classes, run live on random weights.

Logits, loss and every gradient in fp64 and fp32; config and weights both ways; what we write, Transformers loads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from overland.model import Decoder, DecoderConfig, load_model, save_model
from overland.model.checkpoint import released_tensors
from tests.model.widened import widened

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GQA = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
MLA = {
    **SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "moe_intermediate_size": 16,
}
YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
DEEPSEEK = {
    **MLA,
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_nextn_predict_layers": 0,
    "rope_theta": 10000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, dict[str, Any]] = {
    "llama": {**GQA, "model_type": "llama", "rope_theta": 500.0},
    "llama tied, stretched": {
        **GQA,
        "model_type": "llama",
        "rope_theta": 500.0,
        "rope_scaling": LLAMA3,
        "tie_word_embeddings": True,
    },
    "llama with biases": {**GQA, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen3": {**GQA, "model_type": "qwen3", "rope_theta": 1e6},
    "qwen3 with a window": {
        **GQA,
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3 with YaRN": {**GQA, "model_type": "qwen3", "rope_theta": 1e4, "rope_scaling": {**YARN, "mscale": None}},
    "qwen3_moe": {
        **GQA,
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3_moe, weights not renormalised": {
        **GQA,
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": False,
    },
    "mixtral": {**GQA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral with a window": {
        **GQA,
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 6,
    },
    "deepseek_v3": DEEPSEEK,
    "deepseek_v3 with YaRN": {**DEEPSEEK, "rope_scaling": YARN},
    "deepseek_v3 without a query latent": {**DEEPSEEK, "q_lora_rank": None, "rope_interleave": False},
    "deepseek_v32": {
        **{k: v for k, v in DEEPSEEK.items() if k != "num_nextn_predict_layers"},
        "model_type": "deepseek_v32",
        "index_n_heads": 8,
        "index_head_dim": 8,
        "index_topk": 8,
    },
    "kimi_linear": {
        **{k: v for k, v in MLA.items() if k != "q_lora_rank"},
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "q_lora_rank": None,
        "num_experts": 8,
        "num_experts_per_token": 3,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.446,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "linear_attn_config": {
            "full_attn_layers": [3, 4],
            "kda_layers": [1, 2],
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
    },
    "gpt_oss": {
        **GQA,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 6,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    },
    "gpt_oss with plain positions": {
        **GQA,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 6,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default"},
    },
    "gpt_oss that says nothing of positions": {
        **{k: v for k, v in GQA.items() if k != "max_position_embeddings"},
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 6,
    },
}


def reference(case: str, dtype: torch.dtype) -> Any:
    """Transformers' model of a case, every parameter and buffer drawn."""
    config = transformers.AutoConfig.for_model(**CASES[case])
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            drawn = torch.randn(value.shape, generator=gen, dtype=torch.float64)
            if "norm" in name:
                drawn = 1 + 0.2 * drawn
            elif value.ndim > 1 and "conv" not in name and "A_log" not in name:
                drawn = drawn * value.shape[-1] ** -0.5
            value.copy_(drawn)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=gen, dtype=torch.float64))
    return model


def written(model: Any, folder: Path) -> Path:
    """The reference in its released layout: Transformers undoes its own fusions when it saves.

    Of Kimi-Linear it also renames the dense layers, which the release calls `mlp`.
    """
    model.save_pretrained(folder)
    if model.config.model_type == "kimi_linear":
        file = folder / "model.safetensors"
        tensors = load_file(file)
        dense = re.compile(r"\.block_sparse_moe\.(gate|up|down)_proj\.")
        save_file({dense.sub(r".mlp.\1_proj.", name): value for name, value in tensors.items()}, file)
    return folder


def ids_of(case: str, rows: int = 2, tokens: int = 40) -> Tensor:
    return torch.randint(CASES[case]["vocab_size"], (rows, tokens), generator=torch.Generator().manual_seed(2))


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest(x: Tensor) -> float:
    return x.abs().max().item()


def in_our_names(case: str, folder: Path, theirs: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the reference under released names: put where its weights were, then saved by Transformers."""
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            value.copy_(values.get(name, torch.zeros_like(value)))
    return load_file(written(theirs, folder) / "model.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_logits_loss_and_gradients_in_fp64(case: str, tmp_path: Path) -> None:
    with widened():
        theirs = reference(case, torch.float64)
        ours = load_model(written(theirs, tmp_path / "a"), dtype=torch.float64)
        ids = ids_of(case)
        wanted = theirs(ids).logits
        wanted_loss = loss_of(wanted, ids)
        wanted_loss.backward()
    logits = ours(ids).logits
    loss = loss_of(logits, ids)
    loss.backward()
    assert largest(logits - wanted) < 1e-9 * max(1.0, largest(wanted))
    assert abs(loss.item() - wanted_loss.item()) < 1e-9
    expected = in_our_names(case, tmp_path / "b", theirs, gradients(theirs))
    mine = gradients(ours)
    assert mine.keys() == {name for name, _ in ours.named_parameters() if ".indexer." not in name}
    found = dict(released_tensors(ours.config, mine))
    assert found.keys() <= expected.keys()
    for name, value in found.items():
        assert largest(value - expected[name].view_as(value)) < 1e-9 * max(1.0, largest(expected[name])), name


@pytest.mark.parametrize("case", CASES)
def test_what_we_write_transformers_loads(case: str, tmp_path: Path) -> None:
    """And the logits are the same in fp32, as are the norms of the gradients."""
    theirs = reference(case, torch.float32)
    ours = load_model(written(theirs, tmp_path / "a"))
    save_model(ours, tmp_path / "b")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    ids = ids_of(case)
    wanted, logits = again(ids).logits, ours(ids).logits
    assert largest(logits - wanted) < 1e-4 * largest(wanted)
    loss_of(wanted, ids).backward()
    loss_of(logits, ids).backward()
    expected = in_our_names(case, tmp_path / "c", again, gradients(again))
    for name, value in released_tensors(ours.config, gradients(ours)):
        norm = expected[name].norm().item()
        assert value.norm().item() == pytest.approx(norm, rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize("case", CASES)
def test_a_config_is_read_back_as_it_was_written(case: str) -> None:
    config = DecoderConfig.from_dict(CASES[case])
    written = config.to_dict()
    assert DecoderConfig.from_dict(written) == config
    for name, value in CASES[case].items():
        if name not in ("use_sliding_window", "max_window_layers", "rope_scaling"):
            assert written[name] == value, name
    theirs = transformers.AutoConfig.for_model(**written)
    wanted = transformers.AutoConfig.for_model(**CASES[case])
    for name, value in wanted.to_dict().items():
        if name == "rope_parameters":  # we also write the defaults, and not the older name of rope_type
            value = {key: v for key, v in value.items() if key != "type" and v is not None}
            assert value.items() <= theirs.rope_parameters.items()
        elif name not in ("architectures", "transformers_version", "dtype", "max_window_layers"):
            assert getattr(theirs, name) == value, name


def test_the_config_that_transformers_writes_is_read(tmp_path: Path) -> None:
    """Its own form, with rope_parameters in place of rope_theta and rope_scaling."""
    case = "llama tied, stretched"
    written(reference(case, torch.float32), tmp_path)
    read = load_model(tmp_path).config
    assert read.rope == DecoderConfig.from_dict(CASES[case]).rope
    assert Decoder(read).config.tie_word_embeddings
