"""Tensor parallel with sequence parallel: heads, widths and the vocabulary are cut over `tp`, and so is the residual
stream, by tokens.

    stream [B, t, D] --gather--> [B, T, D] --this rank's heads--> W_o's part --reduce-scatter--> [B, t, D],  t = T / tp

Norms, depth mixes, the router and the latent's projections see each rank's own tokens; a mixer, a dense or a shared
feed-forward gathers them first, and its last product leaves its part of the sum at the tokens' ranks. Routed experts
are not cut: rows go where their experts are (parallel/dispatch.py), and every rank sends those of its own tokens.

What is whole on every rank (norms, low-rank gates, latents, the router) therefore gets the gradient of this rank's
tokens or heads alone, and the whole gradient is the sum over `tp`: one all-reduce a step, after the backward pass.

Bytes that a rank sends in a forward, with b = (tp - 1) / tp * B * T * D * element size: 2 b a mixer, a dense
feed-forward and shared experts, b for the embedding and b for the head; as many backward; what is recomputed again.
Source: Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022 (sequence parallel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from overland.model.dsa import DSA, Indexing
from overland.model.feed_forward import FeedForward
from overland.model.gqa import GQA
from overland.model.kda import KDA
from overland.model.mla import MLA
from overland.parallel.collectives import all_gather, gather, part, scatter_sum

_MLA = {
    "q_proj.weight": 0,
    "q_b_proj.weight": 0,
    "kv_b_proj.weight": 0,
    "g_proj.weight": 0,
    "o_proj.weight": 1,
}
PLAN: dict[type[nn.Module], dict[str, int]] = {
    KDA: {
        **dict.fromkeys(("q_proj.weight", "k_proj.weight", "v_proj.weight"), 0),
        **dict.fromkeys(("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"), 0),
        **dict.fromkeys(("g_proj.weight", "g_b_proj.weight", "f_b_proj.weight", "b_proj.weight"), 0),
        **dict.fromkeys(("A_log", "dt_bias"), 0),
        "o_proj.weight": 1,
    },
    MLA: _MLA,
    DSA: _MLA,
    GQA: {
        **dict.fromkeys(("q_proj.weight", "k_proj.weight", "v_proj.weight"), 0),
        **dict.fromkeys(("q_proj.bias", "k_proj.bias", "v_proj.bias", "sinks"), 0),
        "o_proj.weight": 1,
    },
    FeedForward: {
        **dict.fromkeys(("gate_proj.weight", "up_proj.weight", "gate_proj.bias", "up_proj.bias"), 0),
        "down_proj.weight": 1,
    },
}
"""The dim along which each weight of a module is cut; what is not named is whole on every rank."""

HEADS: dict[type[nn.Module], tuple[str, ...]] = {KDA: ("H",), MLA: ("H",), DSA: ("H",), GQA: ("H", "G")}
"""The counts of heads that a module reads, which become this rank's."""


def cut_parameter(module: nn.Module, name: str, dim: int, group: dist.ProcessGroup) -> None:
    """Keep this rank's part of the parameter `name` (dotted) of `module`; nothing where it has no such parameter."""
    *path, last = name.split(".")
    for step in path:
        module = getattr(module, step, None)  # type: ignore[assignment]
    parameter = getattr(module, last, None)
    if isinstance(parameter, nn.Parameter):
        own = part(parameter.detach(), group, dim).clone(memory_format=torch.contiguous_format)
        setattr(module, last, nn.Parameter(own, requires_grad=parameter.requires_grad))


def cut_module(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Cut a mixer or a feed-forward as the plan says, and let it gather its input and scatter its output."""
    for name, dim in PLAN[type(module)].items():
        cut_parameter(module, name, dim, group)
    for name in HEADS.get(type(module), ()):
        setattr(module, name, getattr(module, name) // group.size())
    if isinstance(module, FeedForward):
        module.register_forward_pre_hook(_gather_rows(group))
        _scatter_output(module.down_proj, group, 0)
        return
    module.register_forward_pre_hook(_gather_tokens(group))
    _scatter_output(module.o_proj, group, 1)  # type: ignore[arg-type]
    if isinstance(module, DSA):
        module.attention_mass = _all_heads(module.attention_mass, group)  # type: ignore[method-assign]
        module.register_forward_hook(_own_queries(group))


def _scatter_output(linear: nn.Linear, group: dist.ProcessGroup, dim: int) -> None:
    """A product over this rank's columns: the ranks' sum, this rank's tokens of it; the bias is added once."""

    def forward(x: Tensor) -> Tensor:
        y = scatter_sum(F.linear(x, linear.weight), group, dim)
        return y if linear.bias is None else y + linear.bias

    linear.forward = forward  # type: ignore[method-assign, assignment]


def _gather_tokens(group: dist.ProcessGroup) -> Callable[..., Any]:
    """Mixers see whole rows; keys to replay were recorded by each rank for its own tokens."""

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BtD, *rest = args
        if len(rest) > 2 and rest[2] is not None:
            rest[2] = all_gather(rest[2], group, 1)
        return gather(x_BtD, group), *rest

    return before


def _gather_rows(group: dist.ProcessGroup) -> Callable[..., Any]:
    """A feed-forward takes tokens in any order, so they are gathered along the first dim, which copies nothing."""

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return gather(args[0], group, 0), *args[1:]

    return before


def _own_queries(group: dist.ProcessGroup) -> Callable[..., Any]:
    """What DSA records is cut like the stream, so that a loss over it counts every query once."""

    def after(module: nn.Module, args: Any, out: tuple[Tensor, Indexing]) -> tuple[Tensor, Indexing]:
        y_BtD, found = out
        cut = {name: None if x is None else part(x, group) for name, x in vars(found).items()}
        return y_BtD, replace(found, **cut)

    return after


def _all_heads(mass: Callable[..., Tensor], group: dist.ProcessGroup) -> Callable[..., Tensor]:
    """The heads' mean attention: the mean over ranks of the means over their heads."""

    @torch.no_grad()
    def over_ranks(*args: Tensor) -> Tensor:
        p_BTS = mass(*args)
        dist.all_reduce(p_BTS, group=group)
        return p_BTS / group.size()

    return over_ranks
