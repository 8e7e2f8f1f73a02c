"""The numerical contract: a layout on four gloo ranks gives the losses and gradients of one process.

The reference is the unchanged single-device model on the whole batch, with torch's own cross-entropy, clipping and
AdamW; `losses.json` keeps what it gave. Gradients are compared at equal weights: three AdamW steps amplify a rounding,
because an element with a small gradient g moves by the step size times g / (|g| + 1e-8), whatever g's rounding was. One
process that takes its batch in four pieces differs from itself as much (docs/parallel.md has the figures).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .layouts import LAYOUTS, RANKS, recomputed
from .ranks import on_ranks
from .training import STEPS, Trained, Weights, alone, joined, small_k3, under_layouts, warm

DTYPES = [torch.float32, torch.float64]
LOSS = {torch.float32: 1e-6, torch.float64: 1e-12}
GRADIENT = {torch.float32: 1e-6, torch.float64: 1e-12}
WORST = {torch.float32: 2e-4, torch.float64: 1e-12}
CASES = [(layout, torch.float32) for layout in LAYOUTS]
CASES += [(recomputed(layout), torch.float64) for layout in LAYOUTS]
KEPT = Path(__file__).with_name("losses.json")


@pytest.fixture(scope="module")
def start() -> dict[torch.dtype, Weights]:
    """Equal weights for both sides."""
    return {dtype: warm(small_k3(), dtype) for dtype in DTYPES}


@pytest.fixture(scope="module")
def expected(start: dict[torch.dtype, Weights]) -> dict[torch.dtype, Trained]:
    return {dtype: alone(small_k3(), start[dtype], dtype) for dtype in DTYPES}


@pytest.fixture(scope="module")
def ranks(start: dict[torch.dtype, Weights]) -> list[dict[tuple[str, torch.dtype], Trained]]:
    """Every case on four ranks of a warm process; each layout makes its own groups of them."""
    found: list[dict[tuple[str, torch.dtype], Trained]] = [{} for _ in range(RANKS)]
    for at in range(0, len(CASES), 14):
        some = on_ranks(RANKS, under_layouts, CASES[at : at + 14], small_k3(), start)
        for rank, trained in zip(found, some, strict=True):
            rank.update(trained)
    return found


def apart(found: Weights, wanted: Weights) -> tuple[float, str, float]:
    """Relative difference of all tensors together, and the tensor that differs most from its own norm."""
    assert found.keys() == wanted.keys()
    square = {name: float((found[name] - wanted[name]).square().sum()) for name in wanted}
    norm = {name: float(tensor.square().sum()) for name, tensor in wanted.items()}
    worst = max(wanted, key=lambda name: square[name] / max(norm[name], 1e-300))
    return (sum(square.values()) / sum(norm.values())) ** 0.5, worst, (square[worst] / max(norm[worst], 1e-300)) ** 0.5


@pytest.mark.parametrize(("layout", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch."))
def test_a_layout_gives_the_losses_and_gradients_of_one_process(
    layout: str,
    dtype: torch.dtype,
    ranks: list[Any],
    expected: dict[torch.dtype, Trained],
    record_property: Callable[[str, object], None],
) -> None:
    found, wanted = [rank[layout, dtype] for rank in ranks], expected[dtype]
    for rank in found:
        assert len(rank.losses) == STEPS
        assert rank.losses == pytest.approx(wanted.losses, rel=LOSS[dtype])
        assert rank.norms == pytest.approx(wanted.norms, rel=1e-6)
    whole, worst, most = apart(joined([rank.first for rank in found]), joined([wanted.first]))
    apart_by = max(abs(a / b - 1) for a, b in zip(found[0].losses, wanted.losses, strict=True))
    record_property("case", f"{layout} {dtype} losses {apart_by:.1e} gradients {whole:.1e} worst {most:.1e} {worst}")
    assert whole < GRADIENT[dtype]
    assert most < WORST[dtype], worst
    if dtype == torch.float64:
        for found_part, wanted_part in (("last", wanted.last), ("weights", wanted.weights)):
            assert apart(joined([vars(rank)[found_part] for rank in found]), joined([wanted_part]))[0] < 1e-11


def test_one_process_gives_the_losses_that_are_kept(expected: dict[torch.dtype, Trained]) -> None:
    kept = json.loads(KEPT.read_text("utf-8"))
    assert expected[torch.float64].losses == pytest.approx(kept["float64"], rel=1e-10)
