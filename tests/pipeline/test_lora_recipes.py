"""`[lora]` in a recipe: an adapter in PEFT's layout, and the model with it merged in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from studio.made_up import small_tokenizer

from overland.model import load_model, save_model
from overland.pipeline.standalone import SFTRecipe, sft
from overland.rl import GRPO, RLSection
from overland.rl.batch import train_rows
from overland.rl.shared import WholeSamples
from overland.rl.update import accumulate
from overland.train import SFTSection
from overland.transform import LoRASection, apply_lora, load_lora, remove_lora
from overland.transform.lora import lora_layers
from tests.rl.test_micro_batches import groups
from tests.tiny import tiny


def test_sft_with_lora_leaves_an_adapter_that_makes_the_model(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    base = tmp_path / "base"
    save_model(tiny(torch.float32, vocab_size=tokenizer.vocab_size, max_position_embeddings=512), base)
    tokenizer.save(base)
    talks = [[{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": str(n)}] for n in range(6)]
    data = tmp_path / "talks.jsonl"
    data.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    recipe = SFTRecipe(
        model=str(base),
        data=str(data),
        held_out=0.0,
        sft=SFTSection(steps=3, batch=3, members=3, lr=1e-2),
        lora=LoRASection(rank=2, targets=("o_proj", "q_proj")),
    )
    sft(recipe, tmp_path / "out")
    trained, started = load_model(tmp_path / "out/model").state_dict(), load_model(base).state_dict()
    moved = {name for name, x in trained.items() if not torch.equal(x, started[name])}
    assert moved
    assert all(name.endswith(("o_proj.weight", "q_proj.weight")) for name in moved)
    again = remove_lora(load_lora(load_model(base), tmp_path / "out/adapter")).state_dict()
    assert all(torch.equal(again[name], x) for name, x in trained.items())


def test_rl_gives_the_adapter_its_gradient_through_shared_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = apply_lora(tiny(vocab_size=64), LoRASection(rank=2))
    for _, layer in lora_layers(model):
        layer.lora_B.data.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    section = RLSection(micro_batch_tokens=100)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        accumulate(model, train_rows(groups(1), GRPO()), section)
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        return [p.grad for p in model.parameters() if p.grad is not None]

    shared = gradients()
    monkeypatch.setattr("overland.rl.update.forward_for", WholeSamples)
    assert all((a - b).abs().max() < 1e-8 for a, b in zip(shared, gradients(), strict=True))
    assert max(float(g.abs().max()) for g in shared) > 1e-4
