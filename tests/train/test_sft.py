"""SFT: exact masks, shared prefixes with the plain form's gradient, order and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overland.errors import OverlandError
from overland.runs import RunFolder
from overland.train import (
    Dialogue,
    DialogueOrder,
    Group,
    SFTSection,
    cross_entropy,
    evaluate_dialogues,
    group_by_prefix,
    run_groups,
    sft,
)

from .helpers import nano, toy_dialogues

CPU = torch.device("cpu")


def quick(**changes: object) -> SFTSection:
    base = {"steps": 5, "batch": 8, "members": 4, "warmup": 1, "checkpoint_every": 2}
    return SFTSection(**{**base, **changes})  # type: ignore[arg-type]


def plain_loss(model: torch.nn.Module, dialogues: list[Dialogue], denominator: float) -> torch.Tensor:
    """Every dialogue whole and alone: no cache, no padding."""
    total = torch.zeros(())
    for d in dialogues:
        ids = torch.tensor([d.ids])
        weights = torch.tensor([d.trained[1:]]).float()
        total = total + cross_entropy(model(ids[:, :-1]).logits, ids[:, 1:], weights, denominator)
    return total


def test_a_shared_prefix_gives_the_plain_forms_loss_and_gradient_with_fewer_tokens() -> None:
    dialogues = toy_dialogues(12)
    groups = group_by_prefix(dialogues, members=4)
    assert sorted(g.prefix for g in groups) == [20, 25, 30]
    model = nano()
    denominator = float(sum(sum(d.trained) for d in dialogues))
    expected = plain_loss(model, dialogues, denominator)
    expected.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    out = run_groups(model, groups, CPU)
    loss = cross_entropy(out.logits, out.targets, torch.ones(len(out.targets)), denominator)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for name, p in model.named_parameters():
        if name in wanted:
            scale = wanted[name].abs().max().item()
            assert p.grad is not None
            assert (p.grad - wanted[name]).abs().max().item() <= 2e-4 * scale + 1e-7, name
    assert out.tokens < 0.6 * sum(len(d.ids) - 1 for d in dialogues)


def test_groups_with_and_without_a_prefix_go_together() -> None:
    dialogues = toy_dialogues(6)
    mixed = [Group(0, tuple(dialogues[0:1])), *group_by_prefix(dialogues[1::3], 2)]
    rows = [d for g in mixed for d in g.members]
    model = nano()
    with torch.no_grad():
        out = run_groups(model, mixed, CPU)
        found = cross_entropy(out.logits, out.targets, torch.ones(len(out.targets)), 1.0)
        torch.testing.assert_close(found, plain_loss(model, rows, 1.0), rtol=1e-5, atol=1e-4)


def test_only_the_assistants_tokens_carry_gradient() -> None:
    """Changing an id that is no target of a learned position, and comes after all of them, changes no loss."""
    d = toy_dialogues(1)[0]
    longer = Dialogue((*d.ids, 5, 6), (*d.trained, False, False))
    other = Dialogue((*d.ids, 9, 1), longer.trained)
    model = nano()
    with torch.no_grad():
        losses = []
        for x in (longer, other):
            out = run_groups(model, [Group(0, (x,))], CPU)
            assert torch.equal(out.targets, torch.tensor(x.ids)[torch.tensor(x.trained)])
            losses.append(cross_entropy(out.logits, out.targets, torch.ones(len(out.targets)), 1.0).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_prefix_never_reaches_what_is_learned() -> None:
    same = [Dialogue(tuple(range(30)), tuple(i >= 20 for i in range(30))) for _ in range(4)]
    (group,) = group_by_prefix(same, members=2)
    assert group.prefix == 19
    answers_first = [Dialogue(tuple(range(30)), (False, True) + (False,) * 28) for _ in range(4)]
    assert [g.prefix for g in group_by_prefix(answers_first, members=2)] == [0]


def test_every_epoch_deals_out_each_dialogue_once_and_follows_from_seed_and_step() -> None:
    dialogues = toy_dialogues(25)
    order = DialogueOrder(dialogues, batch=8, members=4, seed=3)
    seen: list[Dialogue] = []
    step = 0
    while len(seen) < 2 * 25:
        groups = order.step(step)
        assert sum(len(g.members) for g in groups) < 12
        assert all(d.ids[: g.prefix] == g.members[0].ids[: g.prefix] for g in groups for d in g.members)
        seen += [d for g in groups for d in g.members]
        step += 1
    assert sorted(d.ids for d in seen[:25]) == sorted(d.ids for d in dialogues)
    assert seen[:25] != seen[25:]
    assert DialogueOrder(dialogues, 8, 4, 3).step(step - 1) == order.step(step - 1)
    assert DialogueOrder(dialogues, 8, 4, 4).step(0) != order.step(0)


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = nano(), nano()
    figures = sft(whole, toy_dialogues(), quick(), RunFolder(tmp_path / "whole"))

    original = DialogueOrder.step

    def stopping(self: DialogueOrder, step: int) -> list[Group]:
        if step == 3:
            raise KeyboardInterrupt
        return original(self, step)

    monkeypatch.setattr(DialogueOrder, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        sft(broken, toy_dialogues(), quick(), RunFolder(tmp_path / "broken"))
    monkeypatch.setattr(DialogueOrder, "step", original)
    resumed = nano(1)
    assert sft(resumed, toy_dialogues(), quick(), RunFolder(tmp_path / "broken"), resume=True) == figures
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert [r["step"] for r in RunFolder(tmp_path / "broken").read_metrics()] == list(range(5))


def test_a_few_dialogues_are_learned_and_reported_by_label(tmp_path: Path) -> None:
    dialogues = toy_dialogues(4, groups=2)
    run, model = RunFolder(tmp_path), nano()
    before = evaluate_dialogues(model.eval(), dialogues)
    figures = sft(model, dialogues, quick(steps=25, batch=4, lr=4e-3, warmup=3), run, held_out=dialogues)
    assert figures["held_out"]["all"]["loss"] < 0.5 * before["all"]["loss"]
    assert set(figures["held_out"]) == {"all", "kind0", "kind1"}
    assert {"sft/loss/kind0", "sft/loss/kind1"} <= run.read_metrics()[0].keys()


def test_micro_batches_do_not_change_the_step(tmp_path: Path) -> None:
    rows = []
    for pieces in (1, 2):
        run = RunFolder(tmp_path / str(pieces))
        sft(nano(), toy_dialogues(), quick(steps=1, micro_batches=pieces), run)
        rows.append(run.read_metrics()[0])
    assert rows[0]["sft/loss"] == pytest.approx(rows[1]["sft/loss"], rel=1e-5)
    assert rows[0]["sft/grad_norm"] == pytest.approx(rows[1]["sft/grad_norm"], rel=1e-4)


def test_a_dialogue_with_nothing_to_learn_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(OverlandError, match="dialogue 0: no token of it is the assistant's"):
        sft(nano(), [((1, 2, 3), (False, False, False))], quick(), RunFolder(tmp_path))
    with pytest.raises(OverlandError, match="no dialogue"):
        sft(nano(), [], quick(), RunFolder(tmp_path))
    with pytest.raises(OverlandError, match="3 ids and 2 mask"):
        sft(nano(), [((1, 2, 3), (True, False))], quick(), RunFolder(tmp_path))
