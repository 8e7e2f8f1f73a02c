"""The chunk forms of KDA (compiled, in torch) against the recurrence, and all against fla-core's naive recurrence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from overland.errors import UsageError
from overland.kernels import kda, kda_chunk, kda_recurrent
from overland.kernels.kda_fla import kda_fla

from .references import fla_naive

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}

Form = Callable[..., Any]
# `kda` picks the compiled form where it could be built; test_compiled.py says when it could not.
FORMS = {"compiled": kda, "bounded": partial(kda_chunk, bounded=True), "unbounded": partial(kda_chunk, bounded=False)}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def inputs(
    T: int, dtype: torch.dtype, z: float = 0.0, seed: int = 0, B: int = 2, H: int = 2, K: int = 8, V: int = 6
) -> dict[str, Tensor]:
    """Unit keys and queries, a log decay of -5 sigmoid(z + noise) as K3's gate gives it, and an entering state."""
    gen = torch.Generator().manual_seed(seed)
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, H, K, generator=gen), dim=-1) for _ in range(2))
    values = {
        "q_BTHK": q * K**-0.5,
        "k_BTHK": k,
        "v_BTHV": torch.randn(B, T, H, V, generator=gen),
        "g_BTHK": -5 * torch.sigmoid(z + torch.randn(B, T, H, K, generator=gen)),
        "beta_BTH": torch.rand(B, T, H, generator=gen),
        "state_BHKV": torch.randn(B, H, K, V, generator=gen),
    }
    return {name: value.to(dtype) for name, value in values.items()}


def gap(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@each_form
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("T", [1, 15, 16, 17, 45])
@pytest.mark.parametrize("z", [-4.0, 0.0, 8.0])
def test_chunks_equal_the_recurrence(T: int, dtype: torch.dtype, z: float, form: Form) -> None:
    x = inputs(T, dtype, z)
    o, state = form(**x)
    o_ref, state_ref = kda_recurrent(**x)
    assert gap(o, o_ref) < TOLERANCE[dtype]
    assert gap(state, state_ref) < TOLERANCE[dtype]


@pytest.mark.parametrize("T", [5, 40])
def test_all_forms_equal_fla_core(T: int) -> None:
    x = inputs(T, torch.float32)
    naive = fla_naive("kda", "naive_recurrent_kda")
    o_ref, state_ref = naive(
        x["q_BTHK"], x["k_BTHK"], x["v_BTHV"], x["g_BTHK"], x["beta_BTH"], 1.0, x["state_BHKV"], output_final_state=True
    )
    for form in (kda, kda_chunk, kda_recurrent):
        o, state = form(**x)
        assert gap(o, o_ref) < 2e-6
        assert gap(state, state_ref) < 2e-6


def gradients(form: Form, x: dict[str, Tensor], **options: object) -> dict[str, Tensor]:
    """Gradients of a fixed random projection of outputs and final state to every input."""
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    o, state = form(**leaves, **options)
    gen = torch.Generator().manual_seed(1)
    loss = sum((out * torch.randn(out.shape, generator=gen).to(out)).sum() for out in (o, state))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@each_form
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("z", [0.0, 8.0])
def test_gradients_are_finite_and_equal(dtype: torch.dtype, z: float, form: Form) -> None:
    x = inputs(37, dtype, z)
    ours, reference = gradients(form, x), gradients(kda_recurrent, x)
    for name, wanted in reference.items():
        assert torch.isfinite(ours[name]).all(), name
        assert gap(ours[name], wanted) < (1e-11 if dtype == torch.float64 else 1e-4) * max(1, wanted.abs().max()), name


@pytest.mark.parametrize("bounded", [True, False])
def test_gradients_agree_with_finite_differences(bounded: bool) -> None:
    x = inputs(7, torch.float64, B=1, H=1, K=3, V=2)
    leaves = [value.requires_grad_() for value in x.values()]
    assert torch.autograd.gradcheck(lambda *args: kda_chunk(*args, bounded=bounded, chunk=4), leaves)


def test_gradients_of_the_compiled_form_agree_with_finite_differences() -> None:
    x = inputs(18, torch.float64, B=2, H=1, K=3, V=2)
    documents, lengths = torch.arange(18).repeat(2, 1) // 7, torch.tensor([18, 17])

    def form(*args: Tensor) -> Tensor:
        o, state = kda(*args, documents_BT=documents, lengths_B=lengths, unit=True)
        return torch.cat([o[:, :17].flatten(), state.flatten()])

    assert torch.autograd.gradcheck(form, [value.requires_grad_() for value in x.values()])


@pytest.mark.parametrize("form", [FORMS["compiled"], FORMS["unbounded"]], ids=["compiled", "unbounded"])
def test_without_a_bound_any_decay_stays_finite(form: Form) -> None:
    x = inputs(33, torch.float32)
    x["g_BTHK"] = x["g_BTHK"] * 40  # down to -200 a token
    ours, reference = gradients(form, x), gradients(kda_recurrent, x)
    for name, wanted in reference.items():
        assert torch.isfinite(ours[name]).all(), name
        assert gap(ours[name], wanted) < 1e-4, name


@pytest.mark.parametrize("form", [kda, kda_chunk])
@pytest.mark.parametrize("cut", [1, 8, 16, 21])
def test_a_state_carried_over_equals_one_run(cut: int, form: Form) -> None:
    x = inputs(38, torch.float64)
    o_ref, state_ref = kda_recurrent(**x)
    state, parts = x["state_BHKV"], []
    for piece in (slice(None, cut), slice(cut, None)):
        tokens = {name: value[:, piece] for name, value in x.items() if name != "state_BHKV"}
        o, state = form(**tokens, state_BHKV=state)
        parts.append(o)
    assert gap(torch.cat(parts, 1), o_ref) < 1e-12
    assert gap(state, state_ref) < 1e-12


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 20), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_a_document_boundary_starts_again_from_nothing(cuts: list[int], seed: int) -> None:
    x = inputs(sum(cuts), torch.float64, seed=seed, B=1)
    documents = torch.cat([torch.full((n,), i) for i, n in enumerate(cuts)])[None]
    results = [form(**x, documents_BT=documents) for form in (kda, kda_chunk, kda_recurrent)]
    start, alone, end = 0, [], None
    for i, n in enumerate(cuts):
        tokens = {name: value[:, start : start + n] for name, value in x.items() if name != "state_BHKV"}
        o_alone, end = kda_recurrent(**tokens, state_BHKV=x["state_BHKV"] if i == 0 else None)
        alone.append(o_alone)
        start += n
    assert end is not None
    for outputs, final in results:
        assert gap(outputs, torch.cat(alone, 1)) < 1e-12
        assert gap(final, end) < 1e-12


def test_padding_without_decay_or_write_changes_nothing() -> None:
    x = inputs(20, torch.float64)
    padded = {**x, "g_BTHK": x["g_BTHK"].clone(), "beta_BTH": x["beta_BTH"].clone()}
    padded["g_BTHK"][:, 13:], padded["beta_BTH"][:, 13:] = 0, 0
    short = {name: value if name == "state_BHKV" else value[:, :13] for name, value in x.items()}
    for form in (kda, kda_chunk, kda_recurrent):
        o, state = form(**padded)
        o_ref, state_ref = kda_recurrent(**short)
        assert gap(o[:, :13], o_ref) < 1e-12
        assert gap(state, state_ref) < 1e-12


@pytest.mark.parametrize("T", [1, 3, 20])
@pytest.mark.parametrize("K", [8, 32, 40, 128])
def test_lengths_and_unit_vectors_are_the_same_in_every_form(T: int, K: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(T, torch.float32, K=K, V=K)
    x["q_BTHK"], x["k_BTHK"] = 3 * x["q_BTHK"], 0.1 * x["k_BTHK"]
    lengths, options = torch.tensor([T, max(1, T - 2)]), {"unit": True}
    results = {}
    for choice in ("reference", "torch", "fast"):
        monkeypatch.setenv("OVERLAND_KERNELS", choice)
        with torch.no_grad():
            o, state = kda(**x, lengths_B=lengths, **options)
        real = torch.arange(T)[None] < lengths[:, None]
        results[choice] = (o[real], state, *gradients(lambda **y: _real(kda(**y, **options), lengths), x).values())
    for choice in ("torch", "fast"):
        for mine, wanted in zip(results[choice], results["reference"], strict=True):
            assert gap(mine, wanted) < 2e-5 * max(1, wanted.abs().max())


def _real(result: tuple[Tensor, Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs with those of padding set to zero: they may be anything."""
    o, state = result
    return o * (torch.arange(o.shape[1])[None] < lengths[:, None])[..., None, None], state


@pytest.mark.parametrize("packed", [False, True])
def test_the_way_to_the_triton_kernel_and_back(packed: bool) -> None:
    naive = fla_naive("kda", "naive_recurrent_kda")

    def stand_in(*tensors: Tensor, initial_state: Tensor, cu_seqlens: Tensor | None = None, **options: Any) -> Any:
        """Triton does not run here: fla-core's naive form, sequence by sequence."""
        if cu_seqlens is None:
            return naive(*tensors, options["scale"], initial_state, output_final_state=True)
        parts = []
        for i, (a, b) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
            part = [x[:, a:b] for x in tensors]
            parts.append(naive(*part, options["scale"], initial_state[i : i + 1], output_final_state=True))
        return torch.cat([o for o, _ in parts], 1), torch.cat([state for _, state in parts])

    x = inputs(12, torch.float32)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2], [0] * 12]) if packed else None
    o, state = kda_fla(*x.values(), documents, True, stand_in)
    o_ref, state_ref = kda_recurrent(**x, documents_BT=documents)
    assert gap(o, o_ref) < 2e-6
    assert gap(state, state_ref) < 2e-6


def test_the_same_bits_come_out_again() -> None:
    x = inputs(50, torch.float32, K=32, V=32)
    first, second = gradients(kda, x), gradients(kda, x)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_environment_picks_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(18, torch.float32)
    monkeypatch.setenv("OVERLAND_KERNELS", "reference")
    assert torch.equal(kda(**x)[0], kda_recurrent(**x)[0])
    monkeypatch.setenv("OVERLAND_KERNELS", "torch")
    assert torch.equal(kda(**x)[0], kda_chunk(**x)[0])
    monkeypatch.setenv("OVERLAND_KERNELS", "fsat")
    with pytest.raises(UsageError, match=r"OVERLAND_KERNELS='fsat'.*reference, torch, fast, fla"):
        kda(**x)
