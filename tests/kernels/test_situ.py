"""SiTU-GLU: the written-out gradient against autograd, and the formula against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overland.kernels import situ_glu, situ_glu_reference


def drawn(scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    gate, up = (scale * torch.randn(40, 7, generator=gen).to(dtype) for _ in range(2))
    return gate.requires_grad_(), up.requires_grad_()


@pytest.mark.parametrize("choice", ["torch", "fast"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_fast_forms_and_gradients_equal_the_formula(scale: float, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAND_KERNELS", choice)
    gate, up = drawn(scale, torch.float32)
    wide = [x.detach().double().requires_grad_() for x in (gate, up)]
    y, wanted = situ_glu(gate, up, 4.0, 25.0), situ_glu_reference(wide[0], wide[1], 4.0, 25.0)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    assert (y - wanted).abs().max() < 4e-5  # values reach 100
    ours = torch.autograd.grad((y * weight).sum(), (gate, up))
    reference = torch.autograd.grad((wanted * weight.double()).sum(), wide)
    for mine, theirs in zip(ours, reference, strict=True):
        assert torch.isfinite(mine).all()
        assert (mine - theirs).abs().max() < 5e-5


def test_formula_gradients_agree_with_finite_differences() -> None:
    gate, up = drawn(2.0, torch.float64)
    assert torch.autograd.gradcheck(lambda g, u: situ_glu(g, u, 4.0, 25.0), (gate[:4], up[:4]))


def test_the_product_is_capped_and_small_inputs_are_swiglu() -> None:
    gate, up = drawn(1e4, torch.float32)
    assert situ_glu(gate, up, 4.0, 25.0).abs().max() <= 100.0
    gate, up = drawn(1e-2, torch.float64)
    torch.testing.assert_close(situ_glu(gate, up, 4.0, 25.0), torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=0)


def test_half_precision_is_computed_wide_and_cast_back() -> None:
    gate, up = drawn(3.0, torch.bfloat16)
    y = situ_glu(gate, up, 4.0, 25.0)
    assert y.dtype == torch.bfloat16
    wanted = situ_glu_reference(gate.double(), up.double(), 4.0, 25.0)
    torch.testing.assert_close(y.double(), wanted, rtol=2**-8, atol=1e-6)
