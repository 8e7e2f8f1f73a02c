"""The fused decoding steps against the layers' own forwards, and the compiled sampler against the plain one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model.test_cache import MODELS, of_family
from tiny import random_ids, tiny
from torch import Tensor, nn

from overland import kernels
from overland.engine import Budget, Generation, Sampling
from overland.engine.sampler import sample, sample_reference
from overland.model import Decoder, Packing
from overland.model.moe import Experts

built = pytest.mark.skipif(not kernels.compiled_state()[0], reason="nothing can be compiled here")
STEPS = ("kda_step", "mla_step", "experts_step", "dense_step")
CASES: dict[str, tuple[Callable[[], Decoder], float, set[str]]] = {
    "K3, fp64": (tiny, 1e-12, set(STEPS)),
    "K3, fp32": (lambda: MODELS[torch.float32], 2e-6, set(STEPS)),
    "Kimi-Linear": (lambda: of_family("kimi_linear"), 1e-12, set(STEPS)),
    "DeepSeek-V3, grouped, with YaRN": (lambda: of_family("deepseek_v3 with YaRN"), 1e-12, set(STEPS) - {"kda_step"}),
    "DeepSeek-V3 without a query latent": (
        lambda: of_family("deepseek_v3 without a query latent"),
        1e-12,
        set(STEPS) - {"kda_step"},
    ),
    "Qwen3-MoE, one softmax": (lambda: of_family("qwen3_moe"), 1e-12, {"experts_step"}),
    "Qwen3-MoE, weights as they are": (
        lambda: of_family("qwen3_moe, weights not renormalised"),
        1e-12,
        {"experts_step"},
    ),
}


def decoded(model: Decoder, rows: int, choice: str, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Logits of ten steps after ragged prompts, and the caches' tensors (states and used slots) after them."""
    monkeypatch.setenv("OVERLAND_KERNELS", choice)
    ids, lengths = random_ids(rows, 30), 1 + random_ids(rows, vocab=19)
    with torch.inference_mode():
        cache = model.new_cache(rows)
        model(ids[:, :20], packing=Packing(lengths=lengths), cache=cache)
        logits = [model(ids[:, t : t + 1], cache=cache) for t in range(20, 30)]
    kept = [x if not part.slotted else x[b, : lengths[b] + 10]
            for part in cache.layers for x in part.tensors() for b in range(rows)]  # fmt: skip
    counts = [routing.counts for out in logits for routing in out.aux.router]
    return [*(out.logits for out in logits), *kept, *counts]


def spied(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the fused steps that have run."""
    ran: set[str] = set()
    for name in STEPS:

        def note(*args: Any, name: str = name, step: Callable[..., Any] = getattr(kernels, name)) -> Any:
            ran.add(name)
            return step(*args)

        monkeypatch.setattr(kernels, name, note)
    return ran


@built
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 13])
@pytest.mark.parametrize("name", CASES)
def test_a_fused_step_is_the_layers_own_forward(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, tolerance, wanted = CASES[name]
    model, ran = make().eval(), spied(monkeypatch)
    plain = decoded(model, rows, "torch", monkeypatch)
    assert not ran
    for ours, theirs in zip(decoded(model, rows, "fast", monkeypatch), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))
    assert wanted <= ran


@built
def test_a_row_does_not_depend_on_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond three rows (where a matrix is read another way) to the last bit, whatever their number."""
    model = MODELS[torch.float32].eval()
    monkeypatch.setenv("OVERLAND_KERNELS", "fast")
    ids = random_ids(11, 1)
    with torch.inference_mode():
        many, few = (model(ids[:n], cache=model.new_cache(n)).logits for n in (11, 4))
    assert torch.equal(many[:4], few)


@built
@pytest.mark.parametrize(
    "part",
    ["q_proj", "shared_experts.up_proj", "experts", "self_attn", "block_sparse_moe", "mlp", "post_attention_layernorm"],
)
def test_what_was_replaced_or_watched_runs_its_own_forward(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny().eval(), []
    chosen = [module for path, module in model.named_modules() if path.endswith(part)]
    for module in chosen:
        if isinstance(module, Experts):
            module.product = lambda x, w, counts: kernels.grouped_product(2 * x, w, counts)
        else:
            module.register_forward_hook(lambda module, args, output: seen.append(module))
    plain = decoded(model, 2, "torch", monkeypatch)
    once = len(seen)
    for ours, theirs in zip(decoded(model, 2, "fast", monkeypatch), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert len(seen) == 2 * once
    assert seen or part == "experts"


@built
def test_weights_may_change_between_steps_and_models_be_copied() -> None:
    """In place, by other memory under the same parameter, by another parameter; addresses do not travel in copies."""
    model, ids = tiny().eval(), random_ids(2, 4)
    gen = torch.Generator().manual_seed(3)

    def noise(x: Tensor) -> Tensor:
        return 0.3 * torch.randn(x.shape, generator=gen, dtype=x.dtype)

    def in_place(module: nn.Module, name: str, value: Tensor) -> None:
        value.data.add_(noise(value))

    def elsewhere(module: nn.Module, name: str, value: Tensor) -> None:
        value.data = value.data + noise(value)

    def another(module: nn.Module, name: str, value: Tensor) -> None:
        setattr(module, name, nn.Parameter(value.detach() + noise(value)))

    cache = model.new_cache(2)
    with torch.no_grad():
        model(ids[:, :1], cache=cache)
        for t, change in enumerate((in_place, elsewhere, another), start=1):
            for module in list(model.modules()):
                for name, value in list(module.named_parameters(recurse=False)):
                    change(module, name, value)
            for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                plain = other(ids[:, t : t + 1], cache=cache.clone()).logits
                stepped = model(ids[:, t : t + 1], cache=cache.clone()).logits
                assert torch.equal(stepped, plain)
            model(ids[:, t : t + 1], cache=cache)


@built
def test_a_subclass_of_linear_is_not_taken_for_a_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = tiny().eval()
    for layer in model.model.layers:
        layer.self_attn.o_proj.__class__ = Doubled  # type: ignore[union-attr, assignment]
    plain = decoded(model, 2, "torch", monkeypatch)
    for ours, theirs in zip(decoded(model, 2, "fast", monkeypatch), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@built
@given(seed=st.integers(0, 10_000), vocab=st.integers(1, 50), spread=st.sampled_from([0.1, 3.0, 300.0]))
def test_the_compiled_sampler_draws_what_the_plain_one_does(seed: int, vocab: int, spread: float) -> None:
    gen = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(6, vocab, generator=gen)
    limit = int(torch.randint(1, vocab + 1, (), generator=gen))
    logits[:, limit:] = float("-inf")
    lines = torch.randint(6, (4,), generator=gen).tolist()
    heats = (0.0, 1.0, 1.0, 2.0)

    def rows() -> list[Generation]:
        forced = [None, None, Budget(limit=0, until=-1, forced=(limit - 1,)), None]
        return [Generation([0], Sampling(t, seed=seed + i), forced[i]) for i, t in enumerate(heats)]

    for one, other in zip(sample(logits, rows(), lines), sample_reference(logits, rows(), lines), strict=True):
        assert one.token == other.token
        assert one.forced == other.forced
        assert one.logprob == pytest.approx(other.logprob, rel=1e-5, abs=1e-5)


def test_equal_logits_give_the_first_and_no_chance_is_never_drawn() -> None:
    logits = torch.zeros(1, 40)
    logits[0, :7] = float("-inf")
    greedy, warm = [Generation([0], Sampling(t, seed=3)) for t in (0.0, 1.0)]
    assert sample(logits, [greedy])[0].token == 7
    logits[0, 9:] = float("-inf")
    assert {sample(logits, [warm])[0].token for _ in range(40)} == {7, 8}
