"""Three optimiser steps of a small model, alone or on this process's ranks: the numerical contract's two sides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from overland.model import Decoder, initialise, preset
from overland.parallel.layout import Layout
from overland.parallel.meshes import build_meshes
from overland.parallel.parallelize import clip_gradients, parallelize

STEPS, ROWS, TOKENS, CLIP = 3, 8, 24, 0.5


@dataclass
class Trained:
    """Losses and gradient norms of every step, and the last step's gradients and weights by name, whole."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def batch(step: int) -> Tensor:
    """The whole batch of a step, [ROWS, TOKENS]."""
    return torch.randint(0, 640, (ROWS, TOKENS), generator=torch.Generator().manual_seed(step))


def train(layout: str | None, dtype: torch.dtype) -> Trained:
    """Train on the whole batch alone (None), or on this rank's rows of it under a layout."""
    model = initialise(Decoder(preset("nano")), "standard", 0).to(dtype)
    rank, world = (dist.get_rank(), dist.get_world_size()) if layout is not None else (0, 1)
    meshes = None
    if layout is not None:
        meshes = build_meshes(Layout.parse(layout), model.config.moe.experts)
        parallelize(model, meshes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        ids = batch(step).chunk(world)[rank]
        logits = model(ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / (ROWS * (TOKENS - 1))
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        if meshes is None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        else:
            norm = clip_gradients(model.parameters(), meshes, CLIP)
        optimizer.step()
        total = loss.detach().clone()
        if world > 1:
            dist.all_reduce(total)
        losses.append(float(total))
        norms.append(float(norm))
    return Trained(losses, norms, gradients, {name: whole(p.data) for name, p in model.named_parameters()})


def whole(tensor: Tensor) -> Tensor:
    """The logical tensor of a sharded one."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def under_layouts(layouts: list[str], dtypes: list[torch.dtype]) -> list[list[Trained]] | None:
    """What training under each layout gives in each dtype; rank 0 answers for all."""
    found = [[train(layout, dtype) for dtype in dtypes] for layout in layouts]
    return found if dist.get_rank() == 0 else None
