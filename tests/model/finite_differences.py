"""Gradients held against central differences along one random direction of each parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

STEP = 1e-6


def check_gradients(module: nn.Module, loss: Callable[[], Tensor], seed: int = 5) -> int:
    """Backpropagate `loss()` and compare every gradient of `module` (float64); returns how many there were."""
    loss().backward()
    gen, found = torch.Generator().manual_seed(seed), 0
    for name, value in module.named_parameters():
        if value.grad is None:
            continue
        found += 1
        direction = torch.randn(value.shape, generator=gen, dtype=torch.float64)
        with torch.no_grad():
            value += STEP * direction
            above = loss()
            value -= 2 * STEP * direction
            below = loss()
            value += STEP * direction
        slope = ((above - below) / (2 * STEP)).item()
        assert slope == pytest.approx((value.grad * direction).sum().item(), rel=1e-5, abs=1e-8), name
    return found
