"""When a layer's part may be computed by one fused kernel: one new token a row, behind a cache, without gradients.

What is applied to a model from outside (adapters, quantisation, sharding, hooks) replaces modules or watches them; a
part in which anything was replaced runs its own forward.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from overland import kernels
from overland.model.context import Context


def steps(x_BTD: Tensor, context: Context) -> bool:
    """Whether this forward is a decoding step that needs nothing but its outputs."""
    return (
        x_BTD.shape[1] == 1
        and context.lengths_B is not None
        and context.packing is None
        and context.indexer_stage is None
        and x_BTD.shape[0] > 0
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def untouched(module: nn.Module | None, kind: type[nn.Module]) -> bool:
    """Whether `module` does what its class says: it is of that very class, not hooked, its forward its own."""
    if type(module) is not kind:
        return False
    return not module._forward_hooks and not module._forward_pre_hooks and "forward" not in module.__dict__


def plain_weights(parent: nn.Module, names: Iterable[str], kind: type[nn.Module] = nn.Linear) -> list[Tensor] | None:
    """The weights of `parent`'s modules of these names, or None: where one was touched, or has a bias.

    It is asked in every step, hence the look into the modules' own dictionaries.
    """
    weights: list[Tensor] = []
    for name in names:
        module = parent._modules[name]
        if not untouched(module, kind):
            return None
        assert module is not None
        weight = module._parameters["weight"]
        if weight is None or module._parameters.get("bias") is not None:
            return None
        weights.append(weight)
    return weights


def step_matrix(module: nn.Module | None) -> kernels.Matrix | None:
    """The matrix of a Linear without bias that nobody touched, or of a module put in its place that says that it is one
    (`step_matrix`, a packed one's). None otherwise."""
    if module is None or module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) is nn.Linear:
        return module._parameters["weight"] if module._parameters.get("bias") is None else None
    own = getattr(type(module), "step_matrix", None)
    return None if own is None else own(module)
