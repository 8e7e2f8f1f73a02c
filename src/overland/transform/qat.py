"""Quantisation-aware training: the forward sees the weights' MXFP4 values, the gradient goes straight to the weights.

    y = x Q(W)^T;   dL/dW = dL/dQ(W)

The weights stay what they are, under their names: optimisers, checkpoints and files notice nothing. As in K3's recipe
only the routed experts are meant by default; activations stay as they are (K3's are MXFP8 in training, which is left
to hardware that has it).
Source: straight-through estimator, Bengio et al. 2013; reference/architecture.md §12.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland import kernels
from overland.errors import UsageError
from overland.model.moe import Experts
from overland.transform.targets import EXPERTS, chosen_linears, replace_module

M = TypeVar("M", bound=nn.Module)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, dim: int, rule: str) -> Tensor:
        return kernels.mxfp4_round(weight, dim, rule)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0], None, None


def fake_quantized(weight: Tensor, dim: int = -1, rule: str = "even") -> Tensor:
    """The values that MXFP4 keeps of `weight`, blocks along `dim`; the gradient passes unchanged."""
    return _StraightThrough.apply(weight, dim, rule)


class FakeQuantizedProduct:
    """The experts' product (see overland.model.moe.Experts) with quantised matrices [E, in, out]."""

    def __init__(self, rule: str) -> None:
        self.rule = rule

    def __call__(self, x_MI: Tensor, w_EIO: Tensor, counts_E: Tensor) -> Tensor:
        return kernels.grouped_product(x_MI, fake_quantized(w_EIO, 1, self.rule), counts_E)


class FakeQuantizedLinear(nn.Linear):
    """A Linear with a quantised weight. `weight` and `bias` are the original's own parameters, under their names."""

    def __init__(self, base: nn.Linear, rule: str) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.rule = base.in_features, base.out_features, rule
        self.weight, self.bias = base.weight, base.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, fake_quantized(self.weight, -1, self.rule), self.bias)


def apply_qat(model: M, targets: Sequence[str] = (EXPERTS,), rule: str = "even") -> M:
    """Let `model` train on the quantised values of what `targets` name: experts, or Linears as for LoRA; in place.

    Raises UsageError for an unknown rule or target, widths that 32 does not divide, and a model without experts.
    """
    if rule not in kernels.MXFP4_RULES:
        raise UsageError(f"qat rule = {rule!r} is unknown; valid: {', '.join(kernels.MXFP4_RULES)}")
    experts = {path: m for path, m in model.named_modules() if isinstance(m, Experts)} if EXPERTS in targets else {}
    linears = chosen_linears(model, [t for t in targets if t != EXPERTS], "qat targets")
    if EXPERTS in targets and not experts:
        raise UsageError(f"qat targets: {EXPERTS!r}, and the model has no routed experts")
    widths = {
        f"{path}.{name}": getattr(m, name).shape[1] for path, m in experts.items() for name in ("gate_up", "down")
    }
    widths |= {path: m.in_features for path, m in linears.items()}
    for path, width in widths.items():
        if width % kernels.MXFP4_BLOCK:
            raise UsageError(f"qat: {path} has {width} inputs, not a multiple of {kernels.MXFP4_BLOCK}")
    for module in experts.values():
        module.product = FakeQuantizedProduct(rule)
    for path, base in linears.items():
        replace_module(model, path, FakeQuantizedLinear(base, rule))
    return model


def remove_qat(model: M) -> M:
    """The model as it was: the forward uses the weights themselves again."""
    for path, module in list(model.named_modules()):
        if isinstance(module, Experts) and isinstance(module.product, FakeQuantizedProduct):
            module.product = kernels.grouped_product
        elif isinstance(module, FakeQuantizedLinear):
            plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
            plain.weight, plain.bias = module.weight, module.bias
            replace_module(model, path, plain)
    return model
