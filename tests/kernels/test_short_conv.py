"""The short convolution, compiled and not, against torch's conv1d."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from overland.kernels import short_conv, short_conv_reference

forms = pytest.mark.parametrize("form", [short_conv, short_conv_reference])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conv1d(u_BTC: Tensor, w_CW: Tensor) -> Tensor:
    """SiLU of a causal depthwise conv1d with zeros before the first token."""
    C, W = w_CW.shape
    return F.silu(F.conv1d(F.pad(u_BTC.transpose(1, 2), (W - 1, 0)), w_CW[:, None], groups=C).transpose(1, 2))


@forms
@pytest.mark.parametrize("W", [2, 3, 4, 5])
@pytest.mark.parametrize("C", [5, 16, 40])
def test_equals_a_causal_depthwise_convolution(form: object, W: int, C: int) -> None:
    u, w = drawn(2, 11, C), drawn(C, W, seed=1)
    (y,), _ = form([u], [w])  # type: ignore[operator]
    torch.testing.assert_close(y, conv1d(u, w))


@forms
@pytest.mark.parametrize("cut", [1, 2, 6])
def test_the_tail_is_the_tokens_before(form: object, cut: int) -> None:
    u, w = [drawn(2, 11, 5), drawn(2, 11, 3, seed=2)], [drawn(5, 4, seed=1), drawn(3, 4, seed=3)]
    _, tail = form([x[:, :cut] for x in u], w)  # type: ignore[operator]
    ys, _ = form([x[:, cut:] for x in u], w, tail)  # type: ignore[operator]
    for y, x, taps in zip(ys, u, w, strict=True):
        torch.testing.assert_close(y, conv1d(x, taps)[:, cut:])


@forms
def test_taps_stop_at_a_document_boundary_and_the_tail_belongs_to_the_first_document(form: object) -> None:
    u, w, tail = drawn(1, 9, 3), drawn(3, 4, seed=1), drawn(1, 3, 3, seed=2)
    documents = torch.tensor([[7, 7, 2, 3, 3, 3, 3, 3, 4]])
    (y,), _ = form([u], [w], tail, documents)  # type: ignore[operator]
    wanted = torch.cat(
        [
            conv1d(torch.cat([tail, u[:, :2]], 1), w)[:, 3:],
            conv1d(u[:, 2:3], w),
            conv1d(u[:, 3:8], w),
            conv1d(u[:, 8:], w),
        ],
        dim=1,
    )
    torch.testing.assert_close(y, wanted)


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3), with_tail=st.booleans(), packed=st.booleans())
def test_values_tails_and_gradients_are_the_same_in_both_forms(
    lengths: list[int], with_tail: bool, packed: bool
) -> None:
    B, T = len(lengths), max(lengths)
    real = (torch.arange(T)[None] < torch.tensor(lengths)[:, None])[..., None]
    documents = (torch.arange(T) // 3).repeat(B, 1) if packed else None
    found = []
    for form in (short_conv, short_conv_reference):
        u, w = [drawn(B, T, 5), drawn(B, T, 18, seed=2)], [drawn(5, 4, seed=1), drawn(18, 4, seed=3)]
        tail = [drawn(B, 3, 23, seed=4)] if with_tail else []
        leaves = [x.requires_grad_() for x in (*u, *w, *tail)]
        ys, after = form(u, w, tail[0] if tail else None, documents, torch.tensor(lengths))
        ys = [y * real for y in ys]  # what padding gives is not promised
        loss = sum((y * drawn(*y.shape, seed=5)).sum() for y in (*ys, after))
        found.append([*ys, after, *torch.autograd.grad(loss, leaves)])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted)


def test_gradients_agree_with_finite_differences() -> None:
    leaves = [drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(1, 6, 2), (2, 4), (1, 3, 2)])]
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])

    def form(u: Tensor, w: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        (y,), after = short_conv([u], [w], tail, documents)
        return y, after

    assert torch.autograd.gradcheck(form, leaves)
