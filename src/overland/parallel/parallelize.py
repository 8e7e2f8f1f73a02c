"""A layout applied to an unchanged model, from outside: cut over `tp`, then by expert over `ep`, then FSDP2.

The plan in one place:

    mixers, feed-forwards, ends     over tp as parallel/tensor.py and parallel/vocabulary.py say
    mixers                          over cp as parallel/context.py says
    experts                         Shard(0) on ep with the MoE's dispatch hook set, dim 1 on efsdp
    every layer, and the ends       Shard(0) on shards

Names stay those of the single-device model; `piece` says what a rank holds of any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from overland.model.context import Context
from overland.model.decoder import Decoder, Stream
from overland.model.layer import DecoderLayer
from overland.model.moe import Experts, MoE
from overland.parallel.ahead import predict_ahead
from overland.parallel.collectives import part
from overland.parallel.context import stretch_mixer
from overland.parallel.dispatch import AllToAll
from overland.parallel.fits import check_tokens
from overland.parallel.layout import Layout
from overland.parallel.meshes import Meshes
from overland.parallel.tensor import PLAN, cut_module, cut_parameter
from overland.parallel.vocabulary import spread_embedding, spread_head, token_losses


@dataclass(frozen=True)
class Parallel:
    """A model under a layout. Every rank of (cp, tp) is given the same whole rows of ids [B, S].

    The model then answers for this rank's tokens: what it records (routing, indexing) is of its t = S / (cp * tp)
    tokens, its logits are [B, S / cp, V / tp]. `losses` takes them; sums of anything over all ranks are those of one
    process. A backward pass is followed by `sum_gradients`.
    """

    model: nn.Module
    meshes: Meshes
    cut: dict[str, int]
    """The parameters that are cut over tp, by name, with their dim."""

    def rows(self, x: Tensor) -> Tensor:
        """This rank's rows of a whole batch."""
        index, count = self.meshes.data
        return x.chunk(count)[index]

    def tokens(self, x_BS: Tensor) -> Tensor:
        """This rank's tokens [B, t] of whole rows."""
        return part(x_BS, self.meshes.token_group)

    def losses(self, logits: Tensor, labels_BS: Tensor) -> Tensor:
        """-log p of the labels of this rank's tokens [B, t]; 0 where a label is `vocabulary.IGNORED`.

        `labels_BS` [B, S] are those of whole rows, the token that each position predicts.
        """
        labels_BT = part(labels_BS, self.meshes.cp_group)[:, : logits.shape[1]]  # prediction blocks stop early alone
        return token_losses(logits, labels_BT, self.meshes.tp_group)

    def sum_gradients(self) -> None:
        """Sum, over tp, the gradients of what is whole on every rank: each holds those of its own tokens or heads.

        One all-reduce of what FSDP left of them here; nothing where tp = 1.
        """
        tp = self.meshes.tp_group
        if tp.size() == 1:
            return
        grads = [_local(p.grad) for _, p in self._repeated() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=tp)
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(summed.view_as(grad))

    def clip_gradients(self, most: float) -> Tensor:
        """Scale gradients so that their norm over all ranks is at most `most`; returns the norm before, on every rank.

        Each rank adds up the squares of what it holds; copies hold the same, so they are not added.
        """
        repeated = {id(p) for _, p in self._repeated()}
        counts = 1.0 / self.meshes.tp_group.size()
        square = torch.zeros((), dtype=torch.float64)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                own = _local(parameter.grad).double().square().sum()
                square = square + own * (counts if id(parameter) in repeated else 1.0)
        dist.all_reduce(square, group=self.meshes.copy_group)
        norm = square.sqrt()
        scale = (most / (norm + 1e-6)).clamp(max=1.0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                grad = _local(parameter.grad)
                grad.mul_(scale.to(grad.dtype))
        return norm

    def piece(self, name: str, tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
        """What this rank holds of a parameter (or its gradient) by name, and where that lies in the whole tensor.

        Nothing is communicated. The ranks' pieces together fill the single-device tensor; copies overlap.
        """
        own = _local(tensor).detach()
        starts = [0] * own.dim()
        if isinstance(tensor, DTensor):
            _, found = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            starts = list(found)
        if name in self.cut:
            dim, tp = self.cut[name], self.meshes.tp_group
            starts[dim] += tp.rank() * tensor.shape[dim]
        return own, tuple(slice(start, start + size) for start, size in zip(starts, own.shape, strict=True))

    def _repeated(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that tp repeats; experts lie on the sparse view."""
        for name, parameter in self.model.named_parameters():
            if name not in self.cut and ".experts." not in name:
                yield name, parameter


def parallelize(model: Decoder, layout: Layout, meshes: Meshes) -> Parallel:
    """Lay `model` over `meshes`, in place; every rank must hold the same weights beforehand.

    `fits.check` says whether that can be. The loss of each rank must be divided by the global number of tokens:
    gradients are summed.
    """
    cut: dict[str, int] = {}
    if layout.cp * layout.tp > 1:
        cut = _share_tokens(model, layout, meshes)
    for module in list(model.modules()):
        if isinstance(module, MoE):
            if meshes.ep > 1:
                _shard_experts(module, meshes)
            fully_shard(module.experts, mesh=meshes.sparse["copies", "efsdp"], shard_placement_fn=_dim_1)
    dense = meshes.dense["copies", "shards"]
    for module in list(model.modules()):
        if isinstance(module, DecoderLayer):
            fully_shard(module, mesh=dense)
    fully_shard(model, mesh=dense)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sums
    return Parallel(model, meshes, cut)


def _share_tokens(model: Decoder, layout: Layout, meshes: Meshes) -> dict[str, int]:
    """Cut the stream's tokens over cp and tp and weights over tp; returns which weights, by name, along which dim."""
    tp, cp, tokens = meshes.tp_group, meshes.cp_group, meshes.token_group
    cut: dict[str, int] = {}

    def note(name: str, dims: dict[str, int]) -> None:
        held = dict(model.named_parameters(remove_duplicate=False))
        cut.update({f"{name}.{last}": dim for last, dim in dims.items() if f"{name}.{last}" in held})

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_tokens(layout, model.config, (args[0] if args else kwargs["input_ids"]).shape[1])

    def ahead(s_BtD: Tensor, stream: Stream, context: Context) -> list[Tensor]:
        return predict_ahead(model.model, tokens, s_BtD, stream, context)

    model.register_forward_pre_hook(before, with_kwargs=True)
    for name, module in list(model.named_modules()):
        if type(module) in PLAN:
            if hasattr(module, "o_proj") and cp.size() > 1:
                stretch_mixer(module, cp)
            if tp.size() > 1:
                note(name, PLAN[type(module)])
                cut_module(module, tp)
        elif isinstance(module, MoE):
            module.register_forward_pre_hook(_own_tokens(tokens))
    embedding, head = model.model.embed_tokens, model.lm_head
    if tp.size() > 1:
        tied = head.weight is embedding.weight
        for name, end in (("model.embed_tokens", embedding), ("lm_head", head)):
            note(name, {"weight": 0})
            cut_parameter(end, "weight", 0, tp)
        if tied:
            head.weight = embedding.weight
        spread_head(head, tp)
    spread_embedding(embedding, cp, tp)
    model.model.predict_ahead = ahead  # type: ignore[method-assign, assignment]
    return cut


def _own_tokens(tokens: dist.ProcessGroup) -> Any:
    """An MoE sees this rank's tokens, so it is told which of those are real."""

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BtD, *rest = args
        if rest and rest[0] is not None:
            rest[0] = part(rest[0], tokens)
        return x_BtD, *rest

    return before


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
