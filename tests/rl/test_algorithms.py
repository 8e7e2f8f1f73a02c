"""What each algorithm does in a whole run, and the two that no peer has held against what they are defined by."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from overland.errors import UsageError
from overland.rl import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    Algorithm,
    CorrectionSection,
    Distil,
    DomainSection,
    DrGRPO,
    Group,
    Mirror,
    Order,
    OverlongSection,
    Reinforce,
    ReinforcePlusPlus,
    RLSection,
    train_rl,
)
from overland.rl.algorithms import Scored, Tokens
from overland.rl.batch import train_rows
from overland.rl.beside import teacher_of
from overland.rl.budgets import Budgets
from overland.rl.section import EffortSection, EffortsSection, WatchdogSection
from overland.runs import RunFolder, read_jsonl_zst

from .test_resume import PartialCredit, fresh
from .toy import START, VOCABULARY, make_sample

ALL = [
    GRPO(),
    DrGRPO(),
    DAPO(),
    GSPO(),
    CISPO(),
    RLOO(),
    Reinforce(),
    ReinforcePlusPlus(gamma=0.9),
    PPO(),
    Mirror(),
    Distil(teachers={"*": "teacher"}),
]
SECTION = RLSection(steps=2, tasks_per_step=3, group_size=3, lr=1e-3, checkpoint_every=1, min_variance=0.0)


def run_of(folder: Path, section: RLSection, resume: bool = False, **options: object) -> tuple[nn.Module, RunFolder]:
    model, run = fresh(), RunFolder(folder)
    torch.manual_seed(8)
    teachers = {"teacher": fresh()}
    rollouts = options.pop("rollouts", None) or PartialCredit(model, section.group_size)
    train_rl(model, None, None, {}, section, run, rollouts=rollouts, teachers=teachers, resume=resume)  # type: ignore[arg-type]
    return model, run


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: a.type)
def test_every_algorithm_trains_and_keeps_its_advantages(algorithm: Algorithm, tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"algorithm": algorithm, "epochs": 2})
    model, run = run_of(tmp_path, section)
    rows = [row for row in run.read_metrics() if "rl/loss" in row]
    assert len(rows) == 2
    assert all(row["rl/grad_norm"] > 0 for row in rows)
    assert all(row["rl/mismatch_kl"] < 1e-9 for row in rows)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), fresh().parameters(), strict=True))
    assert not any("hook" in name for name, _ in model.named_modules())
    kept = [r["training"]["advantage"] for r in read_jsonl_zst(run.episodes / "rl-step-00000.jsonl.zst")]
    assert any(kept)


def test_ppo_resumes_with_its_critic_bit_for_bit(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"algorithm": PPO(value_trunk=True), "epochs": 2, "steps": 4})
    whole, _ = run_of(tmp_path / "whole", section)

    class Killed(PartialCredit):
        def run(self, orders: Sequence[Order], version: int) -> list[Group]:
            if version == 2:
                raise KeyboardInterrupt
            return super().run(orders, version)

    with pytest.raises(KeyboardInterrupt):
        run_of(tmp_path / "cut", section, rollouts=Killed(fresh(), 3))
    cut, run = run_of(tmp_path / "cut", section, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))
    assert all(row["rl/value_rmse"] > 0 for row in run.read_metrics() if "rl/loss" in row)


class AlwaysPaid(PartialCredit):
    """Every sample earns 1: a critic has something to learn at once, a policy has nothing."""

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        return [g.with_samples([replace(s, reward=1.0) for s in g.samples]) for g in super().run(orders, version)]


def test_the_critic_learns_what_samples_earn_and_leaves_the_policy_alone(tmp_path: Path) -> None:
    algorithm = PPO(whiten=False, value_clip=9.0, lam=1.0)
    section = SECTION.model_copy(update={"algorithm": algorithm, "steps": 3, "lr": 0.01, "epochs": 4})
    _, run = run_of(tmp_path, section, rollouts=AlwaysPaid(fresh(), 3))
    errors = [row["rl/value_rmse"] for row in run.read_metrics() if "rl/loss" in row]
    assert errors[0] == pytest.approx(1.0)
    assert errors[-1] < 0.5


def test_the_mirror_loss_has_the_gradient_of_the_squared_distance_to_the_advantage() -> None:
    g = torch.Generator().manual_seed(0)
    old, advantage, tau = -torch.rand(20, generator=g), torch.randn(20, generator=g), 0.3
    logp = (old + 0.2 * torch.randn(20, generator=g)).requires_grad_()
    row = torch.zeros(20, dtype=torch.long)
    Mirror(tau=tau).per_token(Tokens(logp, old, advantage, row))[0].sum().backward()
    found, logp.grad = logp.grad, None
    ((advantage - tau * (logp - old)) ** 2 / (2 * tau)).sum().backward()
    assert found is not None
    assert torch.allclose(found, logp.grad, atol=1e-6)


def test_distillation_follows_the_gradient_of_the_reverse_kl() -> None:
    """Over every token that could be sampled, weighted by its probability, the loss has the KL's own gradient."""
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(VOCABULARY, generator=g, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(VOCABULARY, generator=g, dtype=torch.float64).log_softmax(-1)
    student = logits.log_softmax(-1)
    kl = (student.exp() * (student - teacher)).sum()
    wanted = torch.autograd.grad(kl, logits, retain_graph=True)[0]
    samples = tuple(
        make_sample(str(v), (0, START), (v,), (float(student[v].detach()),), 0.0) for v in range(VOCABULARY)
    )
    algorithm = Distil(bound=100.0)
    scored = Scored(teacher={str(v): (float(teacher[v]),) for v in range(VOCABULARY)})
    advantages = algorithm.batch_advantages([Group("toy", 0, "high", "t", samples)], scored)
    each = torch.tensor([advantages[str(v)] for v in range(VOCABULARY)], dtype=torch.float64)[:, 0]
    loss, _ = algorithm.per_token(Tokens(student, student.detach(), each, torch.arange(VOCABULARY)))
    found = torch.autograd.grad((loss * student.detach().exp()).sum(), logits)[0]
    assert torch.allclose(found, wanted, atol=1e-6)
    bounded = Distil(bound=0.5).batch_advantages([Group("toy", 0, "high", "t", samples)], scored)
    assert max(abs(a[0]) for a in bounded.values()) == 0.5  # type: ignore[index]


def test_the_most_exact_teacher_teaches() -> None:
    algorithm = Distil(teachers={"*": "a", "web": "b", "web/low": "c"})
    assert [teacher_of(algorithm, *who) for who in (("web", "low"), ("web", "max"), ("sql", "low"))] == ["c", "b", "a"]
    with pytest.raises(UsageError, match="no teacher for sql at low"):
        teacher_of(Distil(teachers={"web": "b"}), "sql", "low")


class TwoDomains(PartialCredit):
    """The toy under two names."""

    def __init__(self, model: nn.Module, group_size: int) -> None:
        super().__init__(model, group_size)
        self.levels = {"left": (0,), "right": (0,)}


def test_two_names_of_one_algorithm_share_the_denominator(tmp_path: Path) -> None:
    """Settings decide, not names: a domain with the run's own algorithm spelled out changes no bit."""
    plain = SECTION.model_copy(update={"tasks_per_step": 4})
    spelled = plain.model_copy(update={"domains": {"left": DomainSection(algorithm=GRPO())}})
    a, _ = run_of(tmp_path / "a", plain, rollouts=TwoDomains(fresh(), 3))
    b, _ = run_of(tmp_path / "b", spelled, rollouts=TwoDomains(fresh(), 3))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_every_domain_is_trained_by_its_own_algorithm_and_weighs_by_its_samples() -> None:
    groups = []
    for domain, length in (("left", 2), ("right", 6)):
        samples = [make_sample(f"{domain}{i}", (1, START), (2,) * length, (-1.0,) * length, float(i)) for i in (0, 1)]
        groups.append(Group(domain, 0, "high", domain, tuple(samples)))
    chosen: dict[str, Algorithm] = {"left": GSPO(), "right": GRPO()}
    bundles = train_rows(groups, lambda domain: chosen[domain])
    assert [b.algorithm for b in bundles] == [GSPO(), GRPO()]
    mass = [sum(r.weight * r.sample.trained_tokens for r in b.rows) for b in bundles]
    assert mass == pytest.approx([0.5, 0.5])


def test_a_correction_changes_nothing_where_sampler_and_trainer_agree(tmp_path: Path) -> None:
    _, plain = run_of(tmp_path / "plain", SECTION.model_copy(update={"epochs": 2, "steps": 1}))
    correction = CorrectionSection(level="sequence", action="mask", low=0.5, high=2.0)
    section = SECTION.model_copy(update={"epochs": 2, "steps": 1, "correction": correction})
    _, fixed = run_of(tmp_path / "fixed", section)
    without, found = (next(row for row in run.read_metrics() if "rl/loss" in row) for run in (plain, fixed))
    assert found["rl/corrected_share"] == 0
    for name in ("rl/loss", "rl/grad_norm", "rl/clipped_share"):
        assert found[name] == pytest.approx(without[name], abs=1e-5)


class WrongNumbers(PartialCredit):
    """A sampler whose stored log-probabilities are far from what it sampled with."""

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        groups = super().run(orders, version)
        return [
            g.with_samples([replace(s, logprobs=tuple(x - 1.0 if x else 0.0 for x in s.logprobs)) for s in g.samples])
            for g in groups
        ]


def test_masking_leaves_out_what_the_sampler_did_not_really_sample(tmp_path: Path) -> None:
    section = SECTION.model_copy(
        update={
            "steps": 1,
            "correction": CorrectionSection(level="token", action="mask", low=0.5, high=2.0),
            "watchdogs": WatchdogSection(mismatch_kl=9.0),
        }
    )
    model, run = run_of(tmp_path, section, rollouts=WrongNumbers(fresh(), 3))
    row = next(row for row in run.read_metrics() if "rl/loss" in row)
    assert row["rl/corrected_share"] == 1.0
    assert row["rl/mismatch_kl"] > 0.5
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh().parameters(), strict=True))


class HalfFlat(PartialCredit):
    """Every second group has no variance."""

    dealt = 0

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        groups = []
        for group in super().run(orders, version):
            self.dealt += 1
            rewards = (1.0,) * 3 if self.dealt % 2 else (0.0, 1.0, 1.0)
            groups.append(
                group.with_samples([replace(s, reward=r) for s, r in zip(group.samples, rewards, strict=True)])
            )
        return groups


def test_dynamic_sampling_fills_the_batch_and_counts_what_it_dropped(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"steps": 1, "tasks_per_step": 4, "extra_rounds": 8})
    _, run = run_of(tmp_path, section, rollouts=HalfFlat(fresh(), 3))
    row = next(row for row in run.read_metrics() if "rl/loss" in row)
    assert row["rl/rows"] == 4 * 3
    assert row["rl/accept_rate"] == pytest.approx(4 / row["rl/groups"])
    assert row["rl/dropped_groups"] == row["rl/groups"] - 4
    assert row["rl/dropped_tokens"] > 0
    written = list(read_jsonl_zst(run.episodes / "rl-step-00000.jsonl.zst"))
    assert len(written) == row["rl/groups"] * 3  # nothing that was rolled out is lost


def test_dynamic_sampling_gives_up_after_its_rounds(tmp_path: Path) -> None:
    class Flat(PartialCredit):
        def run(self, orders: Sequence[Order], version: int) -> list[Group]:
            groups = super().run(orders, version)
            return (
                groups
                if version == 0 and len(orders) > 2
                else [g.with_samples([replace(s, reward=1.0) for s in g.samples]) for g in groups]
            )

    section = SECTION.model_copy(update={"steps": 1, "tasks_per_step": 2, "extra_rounds": 3})
    _, run = run_of(tmp_path, section, rollouts=Flat(fresh(), 3))
    row = [row for row in run.read_metrics() if "rl/groups" in row][-1]
    assert (row["rl/groups"], row["rl/rows"]) == (8, 0)


def test_an_overlong_answer_pays_by_how_far_it_went_into_the_buffer() -> None:
    """DAPO eq. 13: nothing up to limit - buffer, then linearly to the whole penalty at the limit."""
    efforts = EffortsSection(high=EffortSection(output_tokens=100, tau=9.0))
    section = RLSection(efforts=efforts, overlong=OverlongSection(buffer=20, penalty=1.0))
    samples = [replace(make_sample(str(n), (1,), (2,), (-1.0,), 1.0), output_tokens=n) for n in (80, 85, 100)]
    priced = Budgets(section).price(Group("toy", 0, "high", "t", tuple(samples)), step=0)
    assert [s.reward for s in priced.samples] == pytest.approx([1.0, 0.75, 0.0])


def test_a_masked_cut_off_sample_still_counts_in_the_baseline() -> None:
    samples = [make_sample(str(i), (1, START), (2, 3), (-1.0, -1.0), float(i == 0)) for i in range(3)]
    bundles = train_rows([Group("toy", 0, "high", "t", tuple(samples))], GRPO(), without={"2"})
    rows = [row for b in bundles for row in b.rows]
    assert [r.sample.id for r in rows] == ["0", "1"]
    assert [r.advantage for r in rows] == pytest.approx([2 / 3, -1 / 3])
    assert sum(r.weight * 2 for r in rows) == pytest.approx(1.0)


def test_figures_are_kept_by_domain_and_effort(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"tasks_per_step": 6, "steps": 1})
    _, run = run_of(tmp_path, section, rollouts=TwoDomains(copy.deepcopy(fresh()), 3))
    row = next(row for row in run.read_metrics() if "rl/loss" in row)
    parts = [row[f"rl/entropy/{name}"] for name in ("left", "right")]
    assert 0 < min(parts) <= row["rl/entropy"] <= max(parts)
    assert any(f"rl/mismatch_kl/{effort}" in row for effort in ("low", "high", "max"))
