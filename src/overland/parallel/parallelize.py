"""A layout applied to an unchanged model, from outside: expert weights cut by expert, then FSDP2 on every layer.

The plan in one place: experts Shard(0) on `ep`, dim 1 on `efsdp`; each decoder layer and the ends Shard(0) on `fsdp`;
the MoE's dispatch hook sends rows where their experts are. One logical tensor stays one DTensor, so that names and
shapes in a checkpoint are the single-device ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from overland.model.layer import DecoderLayer
from overland.model.moe import Experts, MoE
from overland.parallel.dispatch import AllToAll
from overland.parallel.meshes import Meshes


def parallelize(model: nn.Module, meshes: Meshes) -> nn.Module:
    """Shard `model` in place over `meshes` and return it; every rank must hold the same weights beforehand.

    The loss of each rank must already be divided by the global number of tokens: gradients are summed.
    """
    for module in list(model.modules()):
        if isinstance(module, MoE):
            if meshes.ep > 1:
                _shard_experts(module, meshes)
            fully_shard(module.experts, mesh=meshes.sparse["copies", "efsdp"], shard_placement_fn=_dim_1)
    for module in list(model.modules()):
        if isinstance(module, DecoderLayer):
            fully_shard(module, mesh=meshes.dense)
    fully_shard(model, mesh=meshes.dense)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sums
    return model


def clip_gradients(parameters: Iterable[nn.Parameter], meshes: Meshes, most: float) -> Tensor:
    """Scale gradients so that their norm over all ranks is at most `most`; returns the norm before, on every rank.

    Each rank adds up the squares of what it holds; copies hold the same, so they are not added.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
    square = torch.stack([grad.double().square().sum() for grad in local]).sum()
    dist.all_reduce(square, group=meshes.dense["fsdp"].get_group())
    norm = square.sqrt()
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    for grad in local:
        grad.mul_(scale.to(grad.dtype))
    return norm


def _dim_1(parameter: nn.Parameter) -> Shard:
    return Shard(1)


def _shard_experts(moe: MoE, meshes: Meshes) -> None:
    experts = moe.experts
    for name, whole in list(experts.named_parameters(recurse=False)):
        setattr(experts, name, nn.Parameter(distribute_tensor(whole.data, meshes.sparse["ep"], [Shard(0)])))
    view = cast(Experts, _LocalView(experts))

    def forward(x_MZ: Tensor, counts_E: Tensor) -> Tensor:
        return Experts.forward(view, x_MZ, counts_E)

    experts.forward = forward  # type: ignore[method-assign]
    moe.dispatch = AllToAll(meshes.expert_group)


class _LocalView:
    """A module's attributes with this rank's part of every weight in place of the whole."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        return found.to_local() if isinstance(found, DTensor) else found
