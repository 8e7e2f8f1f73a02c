"""The numerical contract: a layout on four gloo ranks gives the losses and gradients of one process.

The reference is the unchanged single-device model on the whole batch, with torch's own clipping and AdamW.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from overland.errors import UsageError
from overland.model.dispatch import dispatch_locally
from overland.parallel.dispatch import AllToAll
from overland.parallel.layout import Layout
from overland.parallel.meshes import build_meshes

from .ranks import on_ranks
from .training import STEPS, Trained, train, under_layouts

LAYOUTS = ["fsdp=4", "fsdp=2", "fsdp=4,ep=4", "fsdp=4,ep=2", "fsdp=2,ep=2"]
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(scope="module")
def alone() -> list[Trained]:
    return [train(None, dtype) for dtype in DTYPES]


@pytest.fixture(scope="module")
def trained() -> dict[str, list[Trained]]:
    """Every layout, in one group of four ranks."""
    found: Any = on_ranks(4, under_layouts, LAYOUTS, DTYPES)[0]
    return dict(zip(LAYOUTS, found, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_process(layout: str, trained: dict[str, list[Trained]], alone: list[Trained]) -> None:
    for at, tolerance in enumerate((1e-6, 1e-12)):
        assert len(trained[layout][at].losses) == STEPS
        assert trained[layout][at].losses == pytest.approx(alone[at].losses, rel=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_norms_and_weights_are_those_of_one_process(
    layout: str, trained: dict[str, list[Trained]], alone: list[Trained]
) -> None:
    found, expected = trained[layout][1], alone[1]
    assert found.norms == pytest.approx(expected.norms, rel=1e-6)  # torch's clipping adds 1e-6 to the norm as well
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert torch.allclose(found.gradients[name], gradient, rtol=1e-8, atol=1e-11), name
    for name, weight in expected.weights.items():
        assert torch.allclose(found.weights[name], weight, rtol=1e-7, atol=1e-9), name


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


def refusals() -> list[str]:
    found = []
    for layout, experts in [("tp=2", 16), ("fsdp=3", 16), ("ep=4,fsdp=2", 16), ("ep=2,fsdp=2", 15)]:
        try:
            build_meshes(Layout.parse(layout), experts)
        except UsageError as error:
            found.append(str(error))
    return found


def test_what_cannot_be_laid_out_is_refused_before_a_mesh_is_made() -> None:
    for found in on_ranks(2, refusals):
        assert found == [
            "tp = 2: only fsdp and ep are applied so far; valid: 1",
            "fsdp = 3 does not divide the ranks = 2; nearest valid: 1, 2",
            "ep = 4 does not divide the ranks of a copy (fsdp) = 2; nearest valid: 1, 2",
            "ep = 2 does not divide the experts = 15; nearest valid: 1, 3, 5",
        ]
