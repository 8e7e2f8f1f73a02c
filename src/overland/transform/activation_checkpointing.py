"""Activation checkpointing: a decoder layer keeps its inputs and is run again in the backward pass.

What a layer chose stays chosen: expert ids and selected keys are recorded in the first run and replayed in the second,
so that a rounding that differs cannot send a token elsewhere. Gradients are bit for bit those without it; a step
computes every layer twice and holds the activations of one at a time.
Source: Chen et al. 2016; torch.utils.checkpoint in its non-reentrant form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from overland.model.cache import LayerCache
from overland.model.context import Context
from overland.model.dsa import DSA
from overland.model.layer import DecoderLayer, Record

M = TypeVar("M", bound=nn.Module)


def checkpoint_layers(model: M) -> M:
    """Let every decoder layer of `model` recompute its inside in the backward pass; in place, names stay."""
    for layer in model.modules():
        if isinstance(layer, DecoderLayer):
            layer.forward = _Recomputed(layer)  # type: ignore[method-assign]
    return model


def uncheckpoint_layers(model: M) -> M:
    """The model as it was."""
    for layer in model.modules():
        if isinstance(layer, DecoderLayer):
            layer.__dict__.pop("forward", None)
    return model


class _Recomputed:
    """DecoderLayer.forward of one layer. An object, not a closure, so that a deep copy of a model owns its own."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.layer = layer

    def __call__(
        self,
        s_BTD: Tensor,
        bank: list[Tensor],
        context: Context,
        cache: LayerCache | None = None,
        replay_Nk: Tensor | None = None,
        replay_BTk: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], Record]:
        forward = DecoderLayer.forward
        if not torch.is_grad_enabled():
            return forward(self.layer, s_BTD, bank, context, cache, replay_Nk, replay_BTk)
        before = None if cache is None else replace(cache)  # the second run must find it as the first did
        chosen: list[tuple[Tensor | None, Tensor | None]] = []
        keeping = replace(context, keep_selection=context.keep_selection or self._selects(s_BTD, context))

        def run(s_BTD: Tensor, bank: list[Tensor]) -> tuple[Any, ...]:
            own = None if before is None else replace(before)
            experts, keys = chosen[0] if chosen else (replay_Nk, replay_BTk)
            s_BTD, bank, record = forward(self.layer, s_BTD, bank, keeping, own, experts, keys)
            if not chosen:
                experts = None if record.routing is None else record.routing.experts
                chosen.append((experts, None if record.indexing is None else record.indexing.selected))
            return s_BTD, bank, record, own

        s_BTD, bank, record, own = checkpoint(run, s_BTD, bank, use_reentrant=False, preserve_rng_state=False)
        if cache is not None:
            vars(cache).update(vars(own))
        if record.indexing is not None and not context.keep_selection:
            record.indexing.selected = None
        return s_BTD, bank, record

    def _selects(self, s_BTD: Tensor, context: Context) -> bool:
        """Whether some query sees more keys than it may keep."""
        if not isinstance(self.layer.self_attn, DSA):
            return False
        seen = 0 if context.lengths_B is None else int(context.lengths_B.max())
        return seen + s_BTD.shape[1] > self.layer.self_attn.indexer.topk
