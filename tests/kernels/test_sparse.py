"""Sparse attention's two loops: the compiled forms against the formulas, whose own references are in tests/model."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from overland import kernels

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]


def drawn(seed: int, B: int, T: int, S: int, J: int, I: int, topk: int, whole: bool, dtype: torch.dtype) -> Case:
    """Queries that see the keys from anywhere up to anywhere; `whole` numbers make many scores equal."""
    gen = torch.Generator().manual_seed(seed)
    q, w, k = (torch.randn(*shape, generator=gen) for shape in ((B, T, J, I), (B, T, J), (B, S, I)))
    if whole:
        q, w, k = q.round(), w.round(), k.round()
    end = torch.randint(1, S + 1, (B, T), generator=gen)
    begin = (torch.rand(B, T, generator=gen) * end).long() * torch.randint(2, (B, T), generator=gen)
    return q.to(dtype), w.to(dtype), k.to(dtype), begin, end, topk


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    B=st.integers(1, 2),
    T=st.integers(1, 40),
    S=st.integers(1, 200),
    J=st.integers(1, 9),
    I=st.integers(1, 20),
    topk=st.integers(1, 90),
    whole=st.booleans(),
)
def test_the_kept_keys_are_those_of_the_formula(
    seed: int,
    B: int,
    T: int,
    S: int,
    J: int,
    I: int,
    topk: int,
    whole: bool,
) -> None:
    case = drawn(seed, B, T, S, J, I, topk, whole, torch.float64)
    assert torch.equal(kernels.top_keys(*case), kernels.top_keys_reference(*case))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("T", [1, 35])
def test_a_long_context_is_looked_through_completely(T: int, whole: bool) -> None:
    """Long enough that a sample of the keys guesses the floor. In fp32 both forms' scores differ in the last place, so
    a key that is left out may be better than a kept one by that."""
    case = q, w, k, begin, end, topk = drawn(3, 1, T, 9000, 4, 32, 100, whole, torch.float32)
    kept = kernels.top_keys(*case)
    scores = kernels.index_scores(q, w, k)[0]
    at = torch.arange(9000)
    for t in range(T):
        seen = (at >= begin[0, t]) & (at < end[0, t])
        ids = kept[0, t][kept[0, t] >= 0]
        assert len(ids) == min(topk, int(seen.sum()))
        assert seen[ids].all()
        assert (ids.diff() > 0).all()
        rest = seen.clone()
        rest[ids] = False
        if rest.any():
            assert scores[t, ids].min() >= scores[t, rest].max() - 1e-4
    if whole:  # sums of whole numbers are exact, so ties are too
        assert torch.equal(kept, kernels.top_keys_reference(*case))


def without_first_look(q: Tensor, w: Tensor, k: Tensor, begin: Tensor, end: Tensor, topk: int) -> Tensor:
    """The compiled form with every score formed in fp32: what runs where the processor lacks AVX-512 VNNI."""
    native = import_module("overland.kernels.top_keys")._native
    if not native.runs(q, w, k):
        pytest.skip("no C++ compiler, so there is no compiled form")
    (B, T, J, I), S = q.shape, k.shape[1]
    ids = begin.new_empty(B, T, min(topk, S))
    native("top_keys", ids, q, w, k, begin, end, B, T, J, I, S, ids.shape[-1], 0)
    return ids


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999),
    S=st.sampled_from([4096, 4200, 5000, 9001]),
    J=st.integers(1, 9),
    I=st.integers(1, 40),
    topk=st.integers(1, 300),
    kind=st.sampled_from(["drawn", "whole", "equal", "far apart", "tiny", "wild"]),
)
def test_a_first_look_in_eight_bits_changes_no_key(seed: int, S: int, J: int, I: int, topk: int, kind: str) -> None:
    """To the last tie, also where eight bits say nothing: equal scores, one number far above the others, no numbers."""
    q, w, k, begin, end, _ = drawn(seed, 1, 9, S, J, I, topk, kind == "whole", torch.float32)
    if kind == "equal":
        k[:, 50:] = k[:, :50].repeat(1, S // 50, 1)[:, : S - 50]
    elif kind == "far apart":
        k[:, ::97] *= 1e4
        q[:, :, :, 0] *= 1e3
    elif kind == "tiny":
        k, q = k * 1e-20, q * 1e-21
    elif kind == "wild":
        k[:, 7], k[:, 99], k[:, 300], q[:, 3] = float("nan"), float("inf"), 1e30, float("nan")
    case = q, w, k, begin, end, topk
    assert torch.equal(kernels.top_keys(*case), without_first_look(*case))


def test_a_sample_that_misleads_costs_time_and_no_key() -> None:
    """The sample takes every fourth of 8,192 keys: here those are the best ones, and the floor it guesses too high."""
    q, w = torch.ones(1, 9, 1, 4), torch.ones(1, 9, 1)
    k = torch.rand(1, 8192, 4, generator=torch.Generator().manual_seed(0))
    k[:, ::4] += 2
    k[:, 4096:] = 0  # and the later half is no good at all
    end = torch.tensor([[8192, 8191, 6000] * 3])
    case = (q, w, k, torch.zeros_like(end), end, 1500)
    assert torch.equal(kernels.top_keys(*case), kernels.top_keys_reference(*case))


def test_scores_that_are_not_numbers_are_not_kept() -> None:
    q, w, k, begin, end, topk = drawn(1, 1, 4, 5000, 2, 8, 20, False, torch.float32)
    k[:, ::2] = float("nan")
    kept = kernels.top_keys(q, w, k, begin, end, topk)
    assert (kept[kept >= 0] % 2 == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("B, T, S, H, X, L, k", [(2, 3, 50, 5, 12, 8, 7), (1, 2, 90, 18, 37, 21, 40)])
def test_attention_to_kept_latents(B: int, T: int, S: int, H: int, X: int, L: int, k: int, dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(0)
    q, e = torch.randn(B, T, H, X, generator=gen, dtype=dtype), torch.randn(B, S, X, generator=gen, dtype=dtype)
    ids = torch.rand(B, T, S, generator=gen).topk(k).indices.sort(-1).values
    ids[:, 0, (k + 1) // 2 :] = -1
    found = kernels.attend_selected(q, e, ids, L, 0.3)
    torch.testing.assert_close(found, kernels.attend_selected_reference(q, e, ids, L, 0.3))
    mask = kernels.selected_mask(ids, S)[:, :, None]
    scores = torch.einsum("bthx,bsx->bths", q, e).mul(0.3).masked_fill(~mask, float("-inf"))
    torch.testing.assert_close(found, scores.softmax(-1) @ e[:, None, :, :L])
    with pytest.raises(IndexError, match=f"slot {S} is selected of {S}"):
        kernels.attend_selected(q, e, torch.full_like(ids, S), L, 0.3)
