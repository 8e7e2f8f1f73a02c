"""The small shapes that implementations are timed in: 8 layers of width 256, in three families.

Kimi-Linear and DeepSeek-V3 exist in Transformers too; both sides then hold the same weights, ours read from the folder
that Transformers wrote. K3's structure has no class in Transformers.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from overland.model import Decoder, load_model, preset
from overland.model.init import initialise

_COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "max_position_embeddings": 4096,
    "first_k_dense_replace": 1,
}
_HYBRID = {
    "full_attn_layers": [4, 8],
    "kda_layers": [1, 2, 3, 5, 6, 7],
    "num_heads": 4,
    "head_dim": 32,
    "short_conv_kernel_size": 4,
}
K3: dict[str, Any] = {
    **_COMMON,
    "q_lora_rank": 96,
    "num_experts": 16,
    "num_experts_per_token": 4,
    "num_shared_experts": 1,
    "routed_expert_hidden_size": 128,
    "attn_res_block_size": 4,
    "linear_attn_config": _HYBRID,
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "kimi_linear": {
        **_COMMON,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "num_shared_experts": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "linear_attn_config": _HYBRID,
    },
    "deepseek_v3": {
        **_COMMON,
        "q_lora_rank": 96,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    },
}


def k3() -> Decoder:
    """K3's structure with drawn weights."""
    return initialise(Decoder(preset("nano", **K3)), "standard", 0)


def pair(family: str) -> tuple[Decoder, nn.Module, str]:
    """Ours and Transformers' model of `family` with the same drawn weights, and the peer's version."""
    import transformers

    config = transformers.AutoConfig.for_model(family, **TRANSFORMERS[family])
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        if family == "kimi_linear":  # Transformers writes a dense layer under a name that the release does not have
            file = Path(folder) / "model.safetensors"
            tensors = {name: value.clone() for name, value in load_file(file).items()}
            dense = re.compile(r"\.block_sparse_moe\.(gate|up|down)_proj\.")
            save_file({dense.sub(r".mlp.\1_proj.", name): value for name, value in tensors.items()}, file)
        ours = load_model(Path(folder))
    return ours, theirs, f"transformers {version('transformers')}"


def parameters(model: nn.Module) -> int:
    """All of them, each counted once."""
    return sum(p.numel() for p in model.parameters())


def largest_difference(ours: nn.Module, theirs: nn.Module, ids: torch.Tensor) -> float:
    """Of the logits, relative to the largest: below 1e-4 the two compute the same function."""
    with torch.no_grad():
        a, b = ours(ids).logits, theirs(ids).logits
    return float((a - b).abs().max() / b.abs().max())


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least CPU seconds of `work` over `repeats`, after one run that is not counted."""
    work()
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best
