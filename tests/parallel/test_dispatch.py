"""Expert dispatch over ranks gives what the local one gives; held against model/dispatch.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from overland.model.dispatch import dispatch_locally
from overland.parallel.dispatch import AllToAll

from .ranks import on_ranks


def dispatched(seed: int, collapsed: bool, dropping: bool) -> tuple[float, float]:
    """Largest differences of the output and of the input's gradient between all-to-all and local dispatch."""
    ranks, rank, experts, width = dist.get_world_size(), dist.get_rank(), 8, 6
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(experts, width, width, generator=generator, dtype=torch.float64)
    local = matrices.chunk(ranks)[rank]
    generator.manual_seed(100 * seed + rank)
    N = [5, 0, 7, 1][rank]  # a rank without tokens too
    z = torch.randn(N, width, generator=generator, dtype=torch.float64)
    chosen = torch.rand(N, experts, generator=generator).topk(2).indices
    if collapsed:
        chosen = torch.tensor([0, 1]).expand(N, 2).clone()
    weights = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    kept = torch.rand(N, 2, generator=generator) > 0.4 if dropping else None

    def products(of: Tensor) -> Any:
        return lambda rows, counts: torch.cat(
            [part @ matrix for part, matrix in zip(rows.split(counts.tolist()), of, strict=True)]
        )

    def run(dispatch: Any, own: Tensor) -> tuple[Tensor, Tensor]:
        leaf = z.clone().requires_grad_()
        out = dispatch(leaf, chosen, weights, kept, products(own), experts)
        out.square().sum().backward()
        assert leaf.grad is not None
        return out.detach(), leaf.grad

    found = run(AllToAll(dist.group.WORLD), local)
    if N == 0:
        return float(found[0].numel()), float(found[1].numel())
    expected = run(dispatch_locally, matrices)
    return float((found[0] - expected[0]).abs().max()), float((found[1] - expected[1]).abs().max())


def many_dispatches() -> list[tuple[float, float]]:
    return [dispatched(seed, seed % 2 == 1, seed % 3 == 0) for seed in range(6)]


def test_all_to_all_is_the_local_dispatch_on_uneven_collapsed_and_dropped_routings() -> None:
    for rank in on_ranks(4, many_dispatches):
        for difference in rank:
            assert max(difference) < 1e-12
