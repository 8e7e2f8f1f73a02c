"""Collectives along a tensor's dim that autograd can go through; on a group of one they are the identity.

    gather       all-gather        backward: reduce-scatter        every rank's part, side by side
    scatter_sum  reduce-scatter    backward: all-gather            this rank's part of the ranks' sum
    split        none              backward: all-gather            this rank's part of what all ranks hold

Bytes that a rank of R sends for a whole tensor of b bytes: (R - 1) / R * b for a gather and for a reduce-scatter.
Parts are equal: the dim divides by R.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """Every rank's `x` along `dim`, in the order of ranks; gradients of the parts are summed where they came from."""
    return x if group.size() == 1 else _Gather.apply(x, group, dim)


def scatter_sum(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """This rank's part, along `dim`, of the sum of the ranks' `x`."""
    return x if group.size() == 1 else _ScatterSum.apply(x, group, dim)


def split(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """This rank's part of an `x` that is the same on every rank."""
    return x if group.size() == 1 else _Split.apply(x, group, dim)


def part(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """The same for what carries no gradient: a view."""
    return x.chunk(group.size(), dim)[group.rank()]


def all_gather(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Every rank's `x` along `dim`, without gradient."""
    x, ranks = x.contiguous(), group.size()
    parts = x.new_empty(ranks * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(parts, x, group=group)
    return parts if dim == 0 else torch.cat(parts.chunk(ranks), dim=dim)


def reduce_scatter(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """This rank's part along `dim` of the ranks' sum, without gradient."""
    ranks = group.size()
    parts = x.contiguous() if dim == 0 else torch.cat(x.chunk(ranks, dim))
    out = parts.new_empty(parts.shape[0] // ranks, *parts.shape[1:])
    dist.reduce_scatter_tensor(out, parts, group=group)
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gather(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return reduce_scatter(gradients[0], ctx.group, ctx.dim), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return reduce_scatter(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(gradients[0], ctx.group, ctx.dim), None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return part(x, group, dim).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(gradients[0], ctx.group, ctx.dim), None, None
