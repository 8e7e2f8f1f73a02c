"""Our exports in other engines, each in an environment of its own: what they compute beside what we do.

OVERLAND_MLX_PEER and OVERLAND_LLAMA_CPP_PEER name their Pythons; `make peers` makes them under ~/.cache/overland/peers.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from overland.chat import Tokenizer, build_tokenizer
from overland.corpus.bpe import K3_PATTERN, train_bpe
from overland.model import Decoder, DecoderConfig, initialise, load_model, preset, save_model
from overland.model.gguf import export_gguf
from tests.model.test_families import CASES
from tests.tiny import TINY, drawn, tiny

HERE = Path(__file__).parent
PEERS = Path.home() / ".cache/overland/peers"
MLX = Path(os.environ.get("OVERLAND_MLX_PEER", PEERS / "mlx/bin/python"))
LLAMA_CPP = Path(os.environ.get("OVERLAND_LLAMA_CPP_PEER", PEERS / "llamacpp/bin/python"))
TOKENS = 24
TEXTS = ("the quick fox's 12345 jumps", "naïve  Über\n\n def f(x):\n\treturn x", "漢字 mixed Han漢x")


@dataclass(frozen=True)
class Beside:
    """`logits`: the largest difference, as a share of the largest logit; `tokens`: how many greedy ones are equal."""

    logits: float
    tokens: int
    of: int
    versions: str


def words(pattern: str = K3_PATTERN) -> Tokenizer:
    """A small tokenizer with K3's special tokens."""
    texts = ["the quick brown fox jumps over the lazy dog 123 456 it's What'S", "def f(x):\n    return x + 1\n"] * 5
    return build_tokenizer(train_bpe(texts, 300, pattern=pattern))


def small(case: str, tokenizer: Tokenizer) -> Decoder:
    """A drawn model of a family: Kimi K3, or a case of tests/model/test_families.py, plain where llama.cpp must be.

    Kimi's releases norm with 1e-5, and latents, queries and keys with 1e-6, where llama.cpp has one number. The file
    makes up for latents; what is left is in KDA's queries and keys, 9e-6 beside the sum of a head's squares, so it is
    largest in narrow heads. A release's have 128 channels.
    """
    sizes = {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.vocab_size - 1}
    if case == "kimi_k3, heads of 8":
        return tiny(torch.float32, **sizes)
    if case == "kimi_k3, heads of 128":
        return tiny(torch.float32, **sizes, linear_attn_config={**TINY["linear_attn_config"], "head_dim": 128})
    if case == "kimi_k3, nano":
        return initialise(Decoder(DecoderConfig.from_dict({**preset("nano").to_dict(), **sizes})), "induction", 0)
    fields = {**CASES[case], **sizes, "rms_norm_eps": 1e-5}
    if fields["model_type"] == "qwen3_moe":
        fields["mlp_only_layers"] = []
    if case == "qwen3 with YaRN":
        fields["rope_scaling"] = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    return drawn(fields, torch.float32)


def prompts(vocab_size: int, rows: int = 2, tokens: int = 40) -> Tensor:
    return torch.randint(vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def greedy(model: Decoder, ids: Tensor, tokens: int, never: Sequence[int] = ()) -> Tensor:
    """The likeliest token again and again, with the model's cache."""
    cache, step, chosen = model.new_cache(ids.shape[0]), ids, []
    for _ in range(tokens):
        logits = model(step, cache=cache).logits[:, -1:]
        logits[..., list(never)] = -torch.inf
        step = logits.argmax(-1)
        chosen.append(step)
    return torch.cat(chosen, 1)


def against_mlx(model: Decoder, ids: Tensor, scratch: Path, tokens: int = TOKENS) -> Beside:
    """mlx-lm on the folder that save_model writes: logits of `ids`, and the tokens after them."""
    save_model(model, scratch / "model")
    save_file({"input_ids": ids.int(), "tokens": torch.tensor(tokens)}, scratch / "asked.safetensors")
    said = _run(MLX, "mlx_k3.py", scratch / "model", scratch / "asked.safetensors", scratch / "answer.safetensors")
    answer = load_file(scratch / "answer.safetensors")
    with torch.no_grad():
        logits = model(ids).logits
    worst = (answer["logits"] - logits).abs().max() / logits.abs().max()
    same = answer["greedy"] == greedy(model, ids, tokens)
    return Beside(worst.item(), int(same.sum()), same.numel(), f"mlx-lm {said['mlx-lm']}, mlx {said['mlx']}")


def against_llama_cpp(
    model: Decoder, tokenizer: Tokenizer, scratch: Path, dtype: str = "float32", tokens: int = TOKENS
) -> Beside:
    """llama.cpp on the file that export_gguf writes: log-probabilities at the tokens that it chooses, and those.

    In bf16 both compute on the rounded weights: we in fp32, llama.cpp with products of bf16.
    """
    source, target = scratch / "source", scratch / "gguf"
    save_model(model, source)
    tokenizer.save(source)
    export_gguf(source, target, dtype)
    if dtype == "bfloat16":
        model = load_model(source, torch.bfloat16).float()
    ids = prompts(tokenizer.vocab_size)
    never = list(range(tokenizer.text_size, tokenizer.vocab_size))
    asked = {"rows": ids.tolist(), "tokens": tokens, "never": never, "vocab_size": tokenizer.vocab_size, "texts": TEXTS}
    said = _run(LLAMA_CPP, "llama_cpp.py", target / "model.gguf", json.dumps(asked))
    assert said["ids"] == [tokenizer.encode(text) for text in TEXTS], "its tokenizer gives other ids"
    chosen = torch.tensor(said["greedy"])
    with torch.no_grad():
        logits = model(torch.cat([ids, chosen], 1)).logits[:, ids.shape[1] - 1 : -1]
    known = [(row, step) for row, steps in enumerate(said["logprobs"]) for step, p in enumerate(steps) if p]
    theirs = torch.tensor([said["logprobs"][row][step] for row, step in known])
    ours = torch.stack([logits[row, step].log_softmax(-1) for row, step in known])
    same = chosen == greedy(model, ids, tokens, never)
    worst = ((theirs - ours).abs().max() / logits.abs().max()).item()
    return Beside(worst, int(same.sum()), same.numel(), f"xllamacpp {said['xllamacpp']}")


def _run(python: Path, script: str, *arguments: object) -> Any:
    done = subprocess.run(
        [str(python), str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
