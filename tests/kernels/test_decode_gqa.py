"""The fused stack of GQA layers in bf16 against the layers' own forwards in fp32 on the same rounded weights.

torch's own bf16 is held against the same fp32: the fused form, which rounds less often, may not be further away.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import random_ids
from torch import Tensor

from overland import kernels
from overland.engine import Engine, Sampling
from overland.model import Decoder, DecoderConfig, Packing, initialise
from overland.transform import pack, quantize_model

built = pytest.mark.skipif(not kernels.compiled_state()[0], reason="nothing can be compiled here")
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
KINDS = {
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "llama": {"model_type": "llama", "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 4},
    "llama, 3 heads each": {"model_type": "llama", "head_dim": 96, "num_attention_heads": 3, "num_key_value_heads": 1},
}


def drawn(kind: str) -> Decoder:
    """A model in bf16 whose logits are far apart."""
    fields = {**SIZES, **KINDS[kind]}
    model = initialise(Decoder(DecoderConfig.from_dict(fields)), "standard", 0).eval()
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(1 + 0.3 * torch.randn(value.shape, generator=gen) if "norm" in name else value * 2)
    return model.to(torch.bfloat16)


def logits_of(model: Decoder, ids: Tensor, lengths: Tensor, monkeypatch: pytest.MonkeyPatch, choice: str) -> Tensor:
    """Of the last prompt token and six decoding steps after ragged prompts."""
    monkeypatch.setenv("OVERLAND_KERNELS", choice)
    longest = int(lengths.max())
    with torch.inference_mode():
        cache = model.new_cache(len(ids))
        out = [model(ids[:, :longest], packing=Packing(lengths=lengths), cache=cache, last_only=True).logits]
        out += [model(ids[:, t : t + 1], cache=cache).logits for t in range(longest, longest + 6)]
    return torch.cat(out, 1).float()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each fused call had."""
    calls: list[int] = []
    own = kernels.gqa_stack

    def note(x_MD: Tensor, *rest: Any) -> Any:
        calls.append(len(x_MD))
        return own(x_MD, *rest)

    monkeypatch.setattr(kernels, "gqa_stack", note)
    return calls


def worst(ours: Tensor, reference: Tensor) -> float:
    return float((ours - reference).abs().max() / reference.abs().max())


@built
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_stack_is_closer_to_fp32_than_torchs_bf16(
    kind: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = drawn(kind), counted(monkeypatch)
    if packed and kind == "llama, 3 heads each":
        pytest.skip("o_proj's 288 inputs are no multiple of 128: such a layer runs its own forward")
    targets = ("all-linear",)
    exact = copy.deepcopy(model)
    if packed:
        quantize_model(exact, targets)
        pack(model, targets)
    ids, lengths = random_ids(5, 40, vocab=300), torch.tensor([30, 17, 1, 30, 5])
    reference = logits_of(exact.float(), ids, lengths, monkeypatch, "torch")
    plain = logits_of(model, ids, lengths, monkeypatch, "torch")
    assert not calls
    fused = logits_of(model, ids, lengths, monkeypatch, "fast")
    assert calls == [83] + 6 * [5]
    assert worst(fused, reference) <= worst(plain, reference) < 0.03


@built
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_a_token_depends_on_its_row_alone_to_the_last_bit(data: st.DataObject) -> None:
    """Whatever runs beside it, however its prompt is cut, prompt or decoded."""
    packed = data.draw(st.booleans())
    model = MODELS[packed]
    rows, tokens = data.draw(st.integers(1, 9)), 24
    ids = random_ids(rows, tokens, seed=data.draw(st.integers(0, 99)), vocab=300)
    with torch.inference_mode():
        whole = model(ids, cache=model.new_cache(rows)).logits
        cuts = sorted({0, tokens, *data.draw(st.lists(st.integers(1, tokens - 1), max_size=4))})
        row = data.draw(st.integers(0, rows - 1))
        cache = model.new_cache(1)
        parts = [model(ids[row : row + 1, a:b], cache=cache).logits for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(parts, 1)[0], whole[row])


@built
@pytest.mark.parametrize("packed", [False, True])
def test_a_greedy_answer_does_not_depend_on_what_else_runs(packed: bool) -> None:
    prompts = [random_ids(n, seed=n, vocab=300).tolist() for n in (1, 3, 17, 40, 5, 40, 8)]
    greedy = Sampling(temperature=0, max_tokens=12)

    def answers(together: bool, chunk: int | None) -> list[tuple[list[int], list[float]]]:
        engine = Engine(MODELS[packed], max_batch=4, prefill_chunk=chunk, prefix_tokens=0)
        rows = []
        for ids in prompts:
            rows.append(engine.submit(ids, greedy))
            if not together:
                engine.run(rows)
        engine.run(rows)
        return [(row.ids, row.logprobs) for row in rows]

    alone = answers(False, None)
    assert answers(True, None) == alone
    assert answers(True, 7) == alone


@built
def test_what_is_watched_or_replaced_runs_its_own_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, lengths = random_ids(2, 20, vocab=300), torch.tensor([10, 4])
    calls = counted(monkeypatch)
    for path in ("model.layers.1", "model.layers.2.self_attn", "model.layers.0.mlp.up_proj", "model.norm"):
        model, seen = drawn("qwen3"), []
        model.get_submodule(path).register_forward_hook(lambda *args: seen.append(1))  # noqa: B023
        logits_of(model, ids, lengths, monkeypatch, "fast")
        assert len(seen) == 7
    biased = drawn("qwen3")
    biased.model.layers[0].mlp.up_proj.bias = torch.nn.Parameter(torch.ones(384, dtype=torch.bfloat16))  # type: ignore[union-attr]
    logits_of(biased, ids, lengths, monkeypatch, "fast")
    logits_of(drawn("qwen3").float(), ids, lengths, monkeypatch, "fast")
    assert not calls


@built
def test_gradients_run_the_layers_own_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = drawn("llama"), counted(monkeypatch)
    model(random_ids(1, 5, vocab=300), cache=model.new_cache(1)).logits.float().sum().backward()
    assert not calls
    grad = dict(model.named_parameters())["model.layers.0.mlp.up_proj.weight"].grad
    assert grad is not None
    assert grad.abs().sum() > 0


def _models() -> dict[bool, Decoder]:
    return {False: drawn("qwen3"), True: pack(drawn("qwen3"), ("all-linear",))}


MODELS = _models()
