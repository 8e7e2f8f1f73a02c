"""The grouped expert product against a loop over experts, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from overland.kernels import grouped_product, grouped_product_reference


def results(form: object, x: Tensor, w: Tensor, counts: Tensor) -> list[Tensor]:
    """The product and the gradients of a fixed random projection of it."""
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    y = form(*leaves, counts)  # type: ignore[operator]
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)]


@settings(max_examples=30)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), out=st.sampled_from([4, 6, 12]))
def test_grouped_equals_the_loop_with_empty_experts(counts: list[int], out: int) -> None:
    gen = torch.Generator().manual_seed(sum(counts))
    x, w = torch.randn(sum(counts), 8, generator=gen), torch.randn(len(counts), 8, out, generator=gen)
    ours = results(grouped_product, x, w, torch.tensor(counts))
    reference = results(grouped_product_reference, x.double(), w.double(), torch.tensor(counts))
    for mine, theirs in zip(ours, reference, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=1e-5)


def test_gradients_agree_with_finite_differences() -> None:
    gen, counts = torch.Generator().manual_seed(0), torch.tensor([3, 0, 8])
    x, w = (torch.randn(shape, generator=gen, dtype=torch.float64) for shape in ((11, 5), (3, 5, 18)))
    leaves = [x.requires_grad_(), w.requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, w: grouped_product(x, w, counts), leaves)


def test_counts_that_do_not_fit_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 4, there are 5"):
        grouped_product(torch.ones(5, 4), torch.ones(2, 4, 4), torch.tensor([2, 2]))


@pytest.mark.parametrize("out", [64, 70, 130])
def test_wide_matrices_are_the_same_in_all_forms(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gen, counts = torch.Generator().manual_seed(out), torch.tensor([13, 1, 0, 6])
    x, w = torch.randn(20, 33, generator=gen), torch.randn(4, 33, out, generator=gen)
    wanted = results(grouped_product_reference, x.double(), w.double(), counts)
    for choice in ("torch", "fast"):
        monkeypatch.setenv("OVERLAND_KERNELS", choice)
        for mine, theirs in zip(results(grouped_product, x, w, counts), wanted, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("choice", ["fast", "torch", "reference"])
def test_rows_meet_their_own_expert(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAND_KERNELS", choice)
    w = torch.arange(3.0)[:, None, None] * torch.eye(4)
    y = grouped_product(torch.ones(5, 4), w, torch.tensor([2, 0, 3]))
    assert y[:, 0].tolist() == [0.0, 0.0, 2.0, 2.0, 2.0]
