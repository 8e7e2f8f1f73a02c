"""Other people's engines on our exports, with the same weights: mlx-lm's Kimi K3, and llama.cpp on GGUF.

fp32 on both sides: within 1e-4 of the largest logit, and the same greedy tokens. See engines.py for the environments.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from overland.model import load_model
from tests.model.conftest import cases  # noqa: F401 (a fixture)
from tests.peers.engines import LLAMA_CPP, MLX, against_llama_cpp, against_mlx, prompts, small, words
from tests.tiny import tiny

needs_mlx = pytest.mark.skipif(not MLX.exists(), reason=f"no environment with mlx-lm at {MLX}; see make peers")
needs_llama_cpp = pytest.mark.skipif(
    not LLAMA_CPP.exists(), reason=f"no environment with xllamacpp at {LLAMA_CPP}; see make peers"
)
BOUND = 1e-4
K3 = ("kimi_k3, heads of 128", "kimi_k3, nano")
FAMILIES = ("kimi_linear", "llama", "llama tied, stretched", "qwen3", "qwen3 with YaRN", "qwen3_moe", "mixtral")


@needs_mlx
@pytest.mark.slow
def test_k3_in_mlx(tmp_path: Path) -> None:
    found = against_mlx(tiny(torch.float32), prompts(32), tmp_path)
    assert found.logits < BOUND
    assert found.tokens == found.of


@needs_mlx
@pytest.mark.slow
def test_the_shared_k3_case_in_mlx(cases: Path, tmp_path: Path) -> None:  # noqa: F811
    ids = load_file(cases / "k3_tiny" / "expected.safetensors")["input_ids"].long()
    found = against_mlx(load_model(cases / "k3_tiny"), ids, tmp_path)
    assert found.logits < BOUND
    assert found.tokens == found.of


@needs_llama_cpp
@pytest.mark.slow
@pytest.mark.parametrize("case", [*K3, *FAMILIES])
def test_a_gguf_in_llama_cpp(case: str, tmp_path: Path) -> None:
    tokenizer = words()
    found = against_llama_cpp(small(case, tokenizer), tokenizer, tmp_path)
    assert found.logits < BOUND
    assert found.tokens == found.of
