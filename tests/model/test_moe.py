"""Latent mixture of experts: against a dense loop over tokens and experts, and the rules of its router."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny import random_ids, tiny
from torch import Tensor

from overland.kernels import situ_glu_reference
from overland.model import Packing, Replay
from overland.model.capacity import Capacity
from overland.model.moe import MoE

from .finite_differences import check_gradients


@pytest.fixture
def moe() -> MoE:
    return next(m for m in tiny().modules() if isinstance(m, MoE))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_hand(moe: MoE, x_D: Tensor) -> Tensor:
    """One token through the formula, expert by expert."""
    scores = (moe.gate.weight @ x_D).sigmoid()
    best = (scores + moe.gate.e_score_correction_bias).argsort(descending=True)[: moe.gate.k]
    z = moe.routed_expert_down_proj.weight @ x_D
    u = torch.zeros_like(z)
    for e in best.tolist():
        gate, up = (z @ moe.experts.gate_up[e]).chunk(2)
        u = u + scores[e] / scores[best].sum() * (situ_glu_reference(gate, up, 4.0, 25.0) @ moe.experts.down[e])
    normed = u / (u.square().mean() + moe.routed_expert_norm.eps).sqrt() * moe.routed_expert_norm.weight
    shared = moe.shared_experts
    inner = situ_glu_reference(shared.gate_proj.weight @ x_D, shared.up_proj.weight @ x_D, 4.0, 25.0)
    return moe.routed_expert_up_proj.weight @ normed + shared.down_proj.weight @ inner


def test_equals_the_formula_token_by_token(moe: MoE, x: Tensor) -> None:
    y, _ = moe(x)
    wanted = torch.stack([by_hand(moe, token) for token in x.flatten(0, 1)]).view_as(x)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)


def test_an_expert_without_tokens_changes_nothing(moe: MoE, x: Tensor) -> None:
    moe.gate.e_score_correction_bias[2] = -10
    y, routing = moe(x)
    assert routing.counts[2] == 0
    wanted = torch.stack([by_hand(moe, token) for token in x.flatten(0, 1)]).view_as(x)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    y.sum().backward()
    assert moe.experts.down.grad is not None
    assert moe.experts.down.grad[2].abs().max() == 0


def test_the_bias_changes_the_selection_and_not_the_weights(moe: MoE, x: Tensor) -> None:
    flat = x.flatten(0, 1)
    _, scores, before, _ = moe.gate(flat)
    moe.gate.e_score_correction_bias[3] += 10
    _, _, after, weights = moe.gate(flat)
    assert (after == 3).any(-1).all()
    assert not (before == 3).any(-1).all()
    chosen = scores.gather(1, after)
    torch.testing.assert_close(weights, chosen / chosen.sum(-1, keepdim=True))


def test_weights_sum_to_the_scaling_factor(moe: MoE, x: Tensor) -> None:
    moe.gate.scale = 2.5
    weights = moe.gate(x.flatten(0, 1)).weights
    torch.testing.assert_close(weights.sum(-1), torch.full((18,), 2.5, dtype=torch.float64))


def test_scaling_all_weights_changes_nothing_but_through_epsilon(moe: MoE, x: Tensor) -> None:
    before, _ = moe(x)
    moe.gate.scale = 40.0
    moe.routed_expert_norm.eps *= 1600
    after, _ = moe(x)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_the_selection_carries_no_gradient_and_the_scores_do(moe: MoE, x: Tensor) -> None:
    y, routing = moe(x)
    y.square().sum().backward()
    assert not routing.scores.requires_grad
    assert moe.gate.weight.grad is not None
    assert moe.gate.weight.grad.norm() > 0


def test_replay_uses_the_recorded_experts_and_weighs_them_anew() -> None:
    model, ids = tiny(), random_ids(2, 7)
    first = model(ids)
    recorded = [routing.experts for routing in first.aux.router]
    assert torch.equal(model(ids, replay=Replay(recorded)).logits, first.logits)
    shifted = [(experts + 1) % 6 for experts in recorded]
    second = model(ids, replay=Replay(shifted))
    assert not torch.allclose(second.logits, first.logits)
    for routing, wanted in zip(second.aux.router, shifted, strict=True):
        assert torch.equal(routing.experts, wanted)
        assert torch.equal(routing.counts, torch.bincount(wanted.flatten(), minlength=6))


def test_finite_differences_under_replayed_routing() -> None:
    model, ids = tiny(), random_ids(1, 6)
    replay = Replay([routing.experts for routing in model(ids).aux.router])

    def loss() -> Tensor:
        return F.cross_entropy(model(ids, replay=replay).logits[0, :-1], ids[0, 1:])

    assert check_gradients(model, loss) > 20


def test_counts_and_scores_ignore_padding() -> None:
    model, ids = tiny(), random_ids(3, 8)
    lengths = torch.tensor([8, 1, 5])
    padded = model(ids, packing=Packing(lengths=lengths))
    for layer, routing in enumerate(padded.aux.router):
        alone = [model(ids[b : b + 1, :n]).aux.router[layer] for b, n in enumerate(lengths.tolist())]
        assert torch.equal(routing.counts, sum(r.counts for r in alone))
        torch.testing.assert_close(routing.scores, torch.cat([r.scores for r in alone]), rtol=0, atol=1e-12)
        assert routing.counts.sum() == 14 * 2


# ---------------------------------------------------------------- capacity and dispatch


def kept_one_by_one(experts: list[list[int]], weights: list[list[float]], room: int, policy: str) -> list[list[bool]]:
    """The rule in plain Python: choices come in line by priority, an expert that is full turns them away."""
    line = [(n, j) for j in range(len(experts[0])) for n in range(len(experts))]
    if policy == "score":
        line = sorted(((n, j) for n, j in sorted(line)), key=lambda at: -weights[at[0]][at[1]])
    taken: dict[int, int] = {}
    kept = [[False] * len(experts[0]) for _ in experts]
    for n, j in line:
        if taken.get(experts[n][j], 0) < room:
            taken[experts[n][j]] = taken.get(experts[n][j], 0) + 1
            kept[n][j] = True
    return kept


@given(st.integers(0, 2**31), st.integers(1, 12), st.floats(0.1, 3), st.sampled_from(["score", "position"]))
def test_who_is_dropped_is_what_the_rule_says(seed: int, tokens: int, factor: float, policy: str) -> None:
    gen = torch.Generator().manual_seed(seed)
    experts = torch.rand(tokens, 5, generator=gen).topk(2, -1).indices
    weights = torch.randint(1, 4, (tokens, 2), generator=gen) / 3.0  # ties on purpose
    kept = Capacity(factor, policy).kept(experts, weights, 5)  # type: ignore[arg-type]
    room = math.ceil(factor * tokens * 2 / 5)
    assert kept.tolist() == kept_one_by_one(experts.tolist(), weights.tolist(), room, policy)


def test_padding_takes_no_room_and_is_not_kept() -> None:
    experts, weights = torch.tensor([[0, 1], [0, 2], [0, 1]]), torch.full((3, 2), 0.5)
    valid = torch.tensor([False, True, True])
    kept = Capacity(1.0, "position").kept(experts, weights, 3, valid)  # room ceil(2 * 2 / 3) = 2
    assert kept.tolist() == [[False, False], [True, True], [True, True]]


def test_dropped_choices_contribute_nothing_and_only_while_training(moe: MoE, x: Tensor) -> None:
    free, _ = moe(x)
    moe.capacity = Capacity(0.5)
    moe.eval()
    assert torch.equal(moe(x)[0], free)
    moe.train()
    y, routing = moe(x)
    assert routing.kept is not None
    assert 0 < (~routing.kept).sum() < routing.kept.numel()
    dropped_outside = MoE.forward  # the same forward with the dropped choices' weights set to zero
    choice = moe.gate(x.flatten(0, 1))
    moe.capacity = None
    masked = choice._replace(weights=choice.weights * routing.kept)
    moe.gate.forward = lambda *_: masked  # type: ignore[method-assign, assignment]
    torch.testing.assert_close(y, dropped_outside(moe, x)[0], rtol=0, atol=1e-12)


def test_gradients_flow_through_what_is_kept_and_only_through_that(moe: MoE, x: Tensor) -> None:
    moe.capacity = Capacity(0.25, "position")
    y, routing = moe.train()(x)
    y.square().sum().backward()
    assert routing.kept is not None
    served = torch.bincount(routing.experts[routing.kept], minlength=6) > 0
    assert moe.experts.down.grad is not None
    assert torch.equal(moe.experts.down.grad.abs().amax((1, 2)) > 0, served)


def test_a_dispatch_from_outside_sees_the_choice_and_replaces_the_local_one(moe: MoE, x: Tensor) -> None:
    """Two holders of half of the experts each, as two ranks would have them."""
    wanted, _ = moe(x)

    def halves(
        z_NZ: Tensor, experts_Nk: Tensor, weights_Nk: Tensor, kept_Nk: Tensor | None, experts: object, count: int
    ) -> Tensor:
        total = torch.zeros_like(z_NZ)
        for rank in range(2):
            low, high = rank * count // 2, (rank + 1) * count // 2
            for n, j in ((experts_Nk >= low) & (experts_Nk < high)).nonzero().tolist():
                e = experts_Nk[n, j]
                counts = F.one_hot(e, count)
                total[n] += weights_Nk[n, j] * moe.experts(z_NZ[n : n + 1], counts)[0]
        return total

    moe.dispatch = halves
    torch.testing.assert_close(moe(x)[0], wanted, rtol=0, atol=1e-12)


def test_logits_are_recorded_only_where_a_gradient_is(moe: MoE, x: Tensor) -> None:
    _, routing = moe(x)
    assert routing.logits is not None
    torch.testing.assert_close(routing.logits.sigmoid(), routing.scores)
    with torch.no_grad():
        assert moe(x)[1].logits is None
