"""The balancing rules behind one face: against Transformers' auxiliary loss, and their definitions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from overland.model.moe import Routing
from overland.runs import RunFolder
from overland.train import (
    AuxiliaryLoss,
    Balance,
    LoopSection,
    PretrainSection,
    QuantileBalance,
    SFTSection,
    SignBalance,
    auxiliary_loss,
    make_balance,
    pretrain,
    router_agreement,
    sft,
    z_loss,
)
from overland.train.meters import routing_metrics, routing_totals
from train.helpers import CopyLoader, nano, toy_dialogues

E, K = 8, 2


@dataclass
class Gate:
    k: int
    e_score_correction_bias: Tensor

    @staticmethod
    def affinities(logits_NE: Tensor) -> Tensor:
        return logits_NE.sigmoid()


@dataclass
class Record:
    scores: Tensor
    counts: Tensor
    gate: Gate
    kept: Tensor | None = None
    logits: Tensor | None = None


def record(logits: Tensor, gate: Gate) -> Record:
    scores = gate.affinities(logits.detach())
    counts = torch.bincount((scores + gate.e_score_correction_bias).topk(K, -1).indices.flatten(), minlength=E)
    return Record(scores, counts, gate, logits=logits if logits.requires_grad else None)


def skewed(N: int = 512, seed: int = 0) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(N, E, generator=gen) + torch.linspace(-1.5, 1.5, E)


# ---------------------------------------------------------------- the rules by themselves


@pytest.mark.parametrize("experts, k", [(8, 2), (16, 4)])
def test_auxiliary_loss_and_its_gradient_are_mixtrals(experts: int, k: int) -> None:
    """Transformers does not divide by k, and sums in fp32."""
    mixtral = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="transformers is not installed"
    )
    logits = torch.randn(300, experts, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    counts = torch.bincount(logits.topk(k, -1).indices.flatten(), minlength=experts)
    ours = auxiliary_loss(mine.softmax(-1), counts, k)
    reference = mixtral.load_balancing_loss_func((theirs,), experts, k) / k
    assert ours.item() == pytest.approx(reference.item(), rel=1e-6)
    ours.backward()
    reference.backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-9)


def test_auxiliary_loss_is_one_where_all_is_even_and_grows_with_the_skew() -> None:
    even = torch.full((40, E), 0.5)
    assert auxiliary_loss(even, torch.full((E,), 10), K).item() == pytest.approx(1.0)
    lone = torch.tensor([[1.0] + [1e-6] * (E - 1)]).expand(40, -1)
    counts = torch.tensor([40, 40] + [0] * (E - 2))
    assert auxiliary_loss(lone, counts, K).item() == pytest.approx(E / K, rel=1e-4)


def test_z_loss_is_the_mean_square_of_logsumexp() -> None:
    logits = torch.tensor([[0.0, 0.0], [3.0, -1.0]], dtype=torch.float64)
    want = (math.log(2) ** 2 + math.log(math.exp(3) + math.exp(-1)) ** 2) / 2
    assert z_loss(logits).item() == pytest.approx(want)


def test_the_sign_rule_moves_each_bias_by_its_rate_towards_the_mean() -> None:
    gate = Gate(K, torch.zeros(3))
    balance = SignBalance(rate=0.01)
    balance.observe([Record(torch.rand(6, 3), torch.tensor([6, 4, 2]), gate)])
    balance.update()
    assert gate.e_score_correction_bias.tolist() == pytest.approx([-0.01, 0.0, 0.01])


@pytest.mark.parametrize("rule", [lambda **o: SignBalance(0.01, **o), lambda **o: QuantileBalance(bins=500, **o)])
def test_micro_batches_and_ranks_add_up_to_the_whole_step(rule) -> None:  # type: ignore[no-untyped-def]
    logits = skewed()
    halves = logits[:200], logits[200:]

    def after(pieces: list[Tensor], **options: object) -> Tensor:
        gate = Gate(K, torch.zeros(E))
        balance = rule(**options)
        for piece in pieces:
            balance.observe([record(piece, gate)])
        balance.update()
        return gate.e_score_correction_bias

    other: list[Tensor] = []  # what the other rank would send: captured from a run of its own
    after([halves[1]], reduce=lambda mine: other.append(mine.clone()) or mine)
    assert torch.equal(after([logits]), after(list(halves)))
    assert torch.equal(after([logits]), after([halves[0]], reduce=lambda mine: mine + other[0]))
    assert len(other) == 1  # one reduction a layer and step


def test_pieces_of_a_step_weigh_by_their_tokens() -> None:
    logits = skewed().requires_grad_()
    gate = Gate(K, torch.zeros(E))
    whole = Balance(z=0.1).loss([record(logits, gate)], 1.0)
    parts = [Balance(z=0.1).loss([record(p, gate)], len(p) / 512) for p in (logits[:100], logits[100:])]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)  # type: ignore[union-attr, arg-type]


def test_without_a_gradient_or_a_coefficient_nothing_is_added() -> None:
    gate = Gate(K, torch.zeros(E))
    assert Balance().loss([record(skewed().requires_grad_(), gate)], 1.0) is None
    assert AuxiliaryLoss(0.1, z=0.1).loss([record(skewed(), gate)], 1.0) is None
    assert AuxiliaryLoss(0.0).loss([record(skewed().requires_grad_(), gate)], 1.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_each_rule_flattens_a_skewed_load(seed: int) -> None:
    """Fresh tokens from a fixed skew; the scores' own offsets are what the auxiliary loss can learn."""

    def run(balance: Balance, steps: int) -> float:
        gate, offset = Gate(K, torch.zeros(E)), torch.zeros(E, requires_grad=True)
        optimizer = torch.optim.SGD([offset], lr=10.0)
        for step in range(steps):
            seen = record(skewed(seed=100 * seed + step) + offset, gate)
            balance.observe([seen])
            term = balance.loss([seen], 1.0)
            if term is not None:
                optimizer.zero_grad()
                term.backward()
                optimizer.step()
            balance.update()
        counts = record(skewed(seed=100 * seed + 77) + offset.detach(), gate).counts
        return (counts.max() / counts.double().mean()).item()

    before = run(Balance(), 1)
    assert before > 2
    assert run(QuantileBalance(), 3) < 1.25
    assert run(QuantileBalance(bins=1000), 3) < 1.25
    assert run(SignBalance(0.02), 40) < 1.25
    assert run(AuxiliaryLoss(0.1), 40) < 1.4


# ---------------------------------------------------------------- meters


def test_agreement_counts_common_choices_in_any_order() -> None:
    one = torch.tensor([[0, 1], [2, 3]])
    assert router_agreement(one, one.flip(-1)) == 1.0
    assert router_agreement(one, torch.tensor([[1, 4], [4, 5]])) == 0.25


def test_dropped_share_and_agreement_of_a_forward() -> None:
    gate = Gate(1, torch.tensor([0.0, 0.0, 10.0]))
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.1, 0.9], [0.9, 0.1, 0.1], [0.1, 0.9, 0.1]])
    kept = torch.tensor([[True], [True], [True], [False]])
    totals = routing_totals([Record(scores, torch.tensor([0, 0, 4]), gate, kept)])
    assert routing_metrics(totals) == {"moe/dropped_share": 0.25, "moe/bias_agreement": 0.25}


# ---------------------------------------------------------------- chosen in the recipe


@pytest.mark.parametrize(
    "name, kind",
    [("quantile", QuantileBalance), ("sign", SignBalance), ("auxiliary", AuxiliaryLoss), ("none", Balance)],
)
def test_a_recipe_names_the_rule(name: str, kind: type) -> None:
    assert type(make_balance(LoopSection(balance=name))) is kind  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sign", "auxiliary", "none"])
def test_pretraining_runs_under_every_rule_with_meters(name: str, tmp_path: Path) -> None:
    section = PretrainSection(
        steps=2, balance=name, balance_rate=0.25, balance_z=1e-3, capacity_factor=1.0, micro_batches=2  # type: ignore[arg-type]
    )  # fmt: skip
    model = nano()
    pretrain(model, CopyLoader(), section, RunFolder(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "train/loss" in row]
    assert 0 < rows[-1]["moe/dropped_share"] < 1
    moved = {float(b.abs().max()) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    assert (max(moved) > 0) == (name == "sign")
    assert (rows[-1]["moe/bias_agreement"] < 1) == (name == "sign")
    assert all(getattr(m, "capacity", None) is None for m in model.modules())  # later stages start free


def test_what_balancing_adds_reaches_the_router_in_sft_too(tmp_path: Path) -> None:
    def gates_after(**options: float) -> Tensor:
        model, fixed = nano(), {"steps": 1, "batch": 4, "members": 2, "balance": "auxiliary", "clip": 0.0, "warmup": 0}
        section = SFTSection.model_validate({**fixed, **options})
        sft(model, toy_dialogues(8), section, RunFolder(tmp_path / str(options)))
        return torch.cat([p.detach().flatten() for n, p in model.named_parameters() if n.endswith("gate.weight")])

    assert not torch.equal(gates_after(balance_loss=0.0), gates_after(balance_loss=1.0))


def test_a_models_record_is_what_the_rules_expect() -> None:
    out = nano()(torch.arange(32).view(2, 16))
    term = AuxiliaryLoss(1.0, z=0.1).loss(out.aux.router, 1.0)
    assert term is not None
    assert isinstance(out.aux.router[0], Routing)
    term.backward()
    assert out.aux.router[0].gate.weight.grad.norm() > 0  # type: ignore[union-attr]
    quiet = [replace(r, logits=None) for r in out.aux.router]
    assert AuxiliaryLoss(1.0).loss(quiet, 1.0) is None
