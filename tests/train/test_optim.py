"""AdamW's groups and clipping against torch, schedules at their corners."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from overland.errors import UsageError
from overland.train import adamw, clip_gradients, decay_groups, learning_rate

from .helpers import nano


def test_only_matrices_decay() -> None:
    model = nano()
    names = {id(p): n for n, p in model.named_parameters()}
    decay, keep = ({names[id(p)] for p in group["params"]} for group in decay_groups(model, 0.1))  # type: ignore[attr-defined]
    assert decay | keep == set(names.values())
    assert not decay & keep
    assert "lm_head.weight" in decay
    assert "model.layers.1.block_sparse_moe.experts.gate_up" in decay
    for part in ("norm", "bias", "embed_tokens", "conv1d", "A_log", "res_proj"):
        assert not [n for n in decay if part in n], part


def test_one_step_is_torchs_unfused_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    a = adamw(ours, 1e-2, weight_decay=0.1)
    b = torch.optim.AdamW(
        [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.95), eps=1e-8, foreach=False,
    )  # fmt: skip
    x = torch.randn(3, 5)
    for _ in range(3):
        for model, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_is_torchs_and_returns_the_norm_before(limit: float) -> None:
    torch.manual_seed(0)
    a = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(1))]
    b = [nn.Parameter(torch.zeros_like(p)) for p in a]
    for p, q in zip(a[:2], b[:2], strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(b, limit).item()
    assert clip_gradients(a, limit) == pytest.approx(expected)
    for p, q in zip(a[:2], b[:2], strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-6)


def test_a_norm_that_is_not_finite_leaves_gradients_alone() -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([1.0, float("inf")])
    assert math.isinf(clip_gradients([p], 1.0))
    assert p.grad[0] == 1.0


def test_schedules_at_their_corners() -> None:
    cosine = [learning_rate(s, 100, 1.0, warmup=10, floor=0.1) for s in range(101)]
    assert cosine[0] == pytest.approx(1 / 11)
    assert max(cosine) == cosine[10] == 1.0
    assert cosine[100] == pytest.approx(0.1)
    assert cosine[55] == pytest.approx(0.55)
    wsd = [learning_rate(s, 100, 2.0, warmup=5, kind="wsd") for s in range(101)]
    assert set(wsd[5:80]) == {2.0}
    assert wsd[90] == pytest.approx(1.0)
    assert wsd[100] == 0.0
    assert learning_rate(77, 100, 3.0, kind="constant") == 3.0


def test_an_unknown_schedule_names_the_valid_ones() -> None:
    with pytest.raises(UsageError, match="cosine, wsd, constant"):
        learning_rate(0, 1, 1.0, kind="linear")
