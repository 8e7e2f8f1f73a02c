"""Training on MXFP4 values: what the forward sees, where the gradient goes, and what it is good for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from train.helpers import nano

from overland import kernels
from overland.errors import UsageError
from overland.transform import apply_qat, fake_quantized, quantize_experts, remove_qat

IDS = torch.arange(48).view(2, 24) * 7 % 640


def test_the_gradient_is_the_one_at_the_quantised_weight() -> None:
    gen = torch.Generator().manual_seed(0)
    x, w = torch.randn(5, 64, generator=gen), torch.randn(7, 64, generator=gen).requires_grad_()
    (x @ fake_quantized(w).T).square().sum().backward()
    at = kernels.mxfp4_round(w.detach()).requires_grad_()
    (x @ at.T).square().sum().backward()
    assert torch.equal(w.grad, at.grad)  # type: ignore[arg-type]
    assert not torch.equal(w, at)


def test_forward_and_gradients_are_those_of_the_quantised_model() -> None:
    def gradients(model: nn.Module) -> dict[str, Tensor]:
        model(IDS).logits.square().mean().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    trained, frozen = apply_qat(nano()), nano()
    quantize_experts(frozen)
    found, wanted = gradients(trained), gradients(frozen)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-8, msg=name)
    assert trained.state_dict().keys() == frozen.state_dict().keys()
    plain = nano()
    for name, value in trained.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])  # the weights themselves are as they were


@torch.no_grad()
def test_linears_by_name_too_and_all_can_be_taken_back() -> None:
    model, plain = nano(), nano()
    apply_qat(model, ("experts", "o_proj"), rule="ceil")
    assert not torch.equal(model(IDS).logits, plain(IDS).logits)
    remove_qat(model)
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]


def test_wrong_rules_targets_and_widths_are_named() -> None:
    with pytest.raises(UsageError, match="'evn' is unknown; valid: even, floor, ceil"):
        apply_qat(nano(), rule="evn")
    with pytest.raises(UsageError, match="no routed experts"):
        apply_qat(nn.Sequential(nn.Linear(32, 32)))
    with pytest.raises(UsageError, match="0 has 33 inputs"):
        apply_qat(nn.Sequential(nn.Linear(33, 32)), ("0",))
