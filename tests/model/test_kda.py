"""The KDA mixer's choices around its kernel; the recurrence itself is held in tests/kernels/test_kda.py."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.tiny import TINY, random_ids, tiny


def test_a_decay_deeper_than_tiles_bear_stays_finite_and_right_without_the_compiled_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bound of -40 would be exp(320) within half a tile of 16 tokens."""
    lists = {**TINY["linear_attn_config"], "gate_lower_bound": -40.0}
    model, ids = tiny(torch.float32, linear_attn_config=lists), random_ids(1, 40)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("dt_bias"):
                value.fill_(8.0)
    monkeypatch.setenv("OVERLAND_KERNELS", "reference")
    wanted = model(ids).logits.detach()
    monkeypatch.setenv("OVERLAND_KERNELS", "fast")
    monkeypatch.setattr(sys.modules["overland.kernels.kda"], "_fits", lambda *_: False)
    logits = model(ids).logits
    assert (logits - wanted).abs().max() < 1e-4 * wanted.abs().max()
    logits.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
