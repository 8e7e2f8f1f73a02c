"""`qat` and `checkpointing` in a recipe's section: what is trained, saved and served."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from rl.toy import ToyRollouts, answer_of, make_sample
from tiny import tiny
from torch import Tensor, nn

from overland import kernels
from overland.errors import UsageError
from overland.model import Decoder, load_model, save_model
from overland.rl import RLSection, train_rl
from overland.rl.curriculum import Order
from overland.rl.samples import Group
from overland.rl.section import EffortSection, EffortsSection, WatchdogSection
from overland.runs import RunFolder
from overland.train import (
    Dialogue,
    PretrainSection,
    SFTSection,
    applied,
    evaluate_bpb,
    evaluate_dialogues,
    pretrain,
    sft,
)
from overland.transform import quantize_experts, quantize_folder

from .helpers import CopyLoader, nano, toy_dialogues


def loss(model: Decoder, dialogues: Sequence[Dialogue]) -> float:
    return evaluate_dialogues(model.eval(), dialogues)["all"]["loss"]


def test_recomputed_layers_leave_the_same_weights(tmp_path: Path) -> None:
    def trained(checkpointing: str) -> dict[str, Tensor]:
        model = nano()
        common = {"batch": 4, "micro_batches": 2, "capacity_factor": 1.2, "checkpointing": checkpointing}
        pretrain(
            model, CopyLoader(), PretrainSection(steps=2, length=23, **common), RunFolder(tmp_path / checkpointing)
        )
        del common["micro_batches"]
        sft(model, toy_dialogues(8), SFTSection(steps=2, members=2, **common), RunFolder(tmp_path / checkpointing))
        return model.state_dict()

    found, wanted = trained("layer"), trained("none")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_sft_with_qat_loses_nothing_when_it_is_quantised(tmp_path: Path) -> None:
    """The same data and steps, plain and then quantised, and on quantised values all along."""
    dialogues = toy_dialogues(12)

    def losses(qat: str) -> tuple[float, float]:
        model, section = nano(), SFTSection(steps=16, batch=12, members=4, lr=4e-3, qat=qat)
        sft(model, dialogues, section, RunFolder(tmp_path / f"run-{qat}"))
        save_model(model, tmp_path / qat)
        quantize_folder(tmp_path / qat, tmp_path / f"{qat}-mxfp4", "even")
        with applied(model, section):
            trained = loss(model, dialogues)
        return trained, loss(load_model(tmp_path / f"{qat}-mxfp4"), dialogues)

    plain, plain_quantised = losses("none")
    aware, aware_quantised = losses("even")
    assert aware_quantised == pytest.approx(aware, abs=1e-6)  # what was trained is what is served
    assert abs(plain_quantised - plain) > 100 * abs(aware_quantised - aware)
    assert aware_quantised < plain_quantised


def test_pretraining_with_qat_measures_the_quantised_model(tmp_path: Path) -> None:
    documents = [(list(range(1, 40)), 100)]
    model, section = nano(), PretrainSection(steps=1, batch=2, length=23, qat="ceil")
    figures = pretrain(model, CopyLoader(2), section, RunFolder(tmp_path), held_out=documents)
    assert all(m.product is kernels.grouped_product for m in model.modules() if hasattr(m, "product"))
    assert figures["bpb_after"] != pytest.approx(evaluate_bpb(model, documents, length=23), abs=1e-7)
    quantize_experts(model, "ceil")
    assert figures["bpb_after"] == pytest.approx(evaluate_bpb(model, documents, length=23), abs=1e-5)


class AsTensor(nn.Module):
    """A decoder as the toy wants its policy: ids to logits."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids_BT: Tensor) -> Tensor:
        logits: Tensor = self.decoder(ids_BT).logits
        return logits


class Graded(ToyRollouts):
    """Rewards by the letter, so that a model which knows nothing has something to learn."""

    def _group(self, order: Order, prompt: tuple[int, ...], answers: Tensor, logps: Tensor, version: int) -> Group:
        right = (answers == torch.tensor(answer_of(prompt))).float().mean(-1).tolist()
        samples = tuple(
            make_sample(f"{order.seed}/{version}/{i}", prompt, answer, logp, right[i])
            for i, (answer, logp) in enumerate(zip(answers.tolist(), logps.tolist(), strict=True))
        )
        return Group(order.domain, order.level, order.effort, str(order.seed), samples)


def test_rl_samples_and_trains_on_the_quantised_values(tmp_path: Path) -> None:
    only = EffortsSection(low=EffortSection(share=0), high=EffortSection(tau=9), max=EffortSection(share=0))
    section = RLSection(
        steps=2, tasks_per_step=4, group_size=4, efforts=only, watchdogs=WatchdogSection(patience=9), qat="even"
    )
    widths = {"moe_intermediate_size": 32, "routed_expert_hidden_size": 32, "max_position_embeddings": 96}
    model = AsTensor(tiny(torch.float32, vocab_size=10, **widths))
    started = {name: value.clone() for name, value in model.state_dict().items()}
    run = RunFolder(tmp_path)
    train_rl(model, None, None, {}, section, run, rollouts=Graded(model, 4))
    rows = [row for row in run.read_metrics() if "rl/mismatch_kl" in row]
    assert max(row["rl/mismatch_kl"] for row in rows) < 1e-6  # both sides saw the same values
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, started[name])}
    assert any(name.endswith("experts.down") for name in moved)
    experts = [m for m in model.modules() if hasattr(m, "product")]
    assert all(m.product is kernels.grouped_product for m in experts)
    down = experts[0].down.detach()
    assert not torch.equal(down, kernels.mxfp4_round(down, 1))  # the weights keep their precision


def test_a_model_without_experts_refuses_qat(tmp_path: Path) -> None:
    dense = tiny(torch.float32, first_k_dense_replace=4, vocab_size=640)
    with pytest.raises(UsageError, match="no routed experts"):
        pretrain(dense, CopyLoader(2), PretrainSection(steps=1, batch=2, qat="even"), RunFolder(tmp_path))
