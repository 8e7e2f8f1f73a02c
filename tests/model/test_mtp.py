"""Multi-token prediction against Transformers' own prediction blocks on copied weights, and its released layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import random_ids, tiny

from model.test_families import DEEPSEEK, reference, written
from model.widened import widened
from overland.model import Decoder, DecoderConfig, Packing, load_model, save_model
from overland.model.checkpoint import released_tensors

layers = pytest.importorskip("transformers.modeling_layers", reason="transformers is not installed")


def drawn(blocks: int) -> Decoder:
    """A DeepSeek-V3 with prediction blocks, every parameter drawn."""
    model = Decoder(DecoderConfig.from_dict({**DEEPSEEK, "num_nextn_predict_layers": blocks})).double()
    gen = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=gen, dtype=torch.float64)
            value.copy_(1 + 0.2 * noise if "norm" in name else noise * value.shape[-1] ** -0.5)
    return model


def test_equals_transformers(tmp_path: Path) -> None:
    model, ids = drawn(1), random_ids(2, 12, vocab=64)
    released = dict(released_tensors(model.config, model.state_dict()))
    with widened():
        theirs = reference("deepseek_v3", torch.float64)
        trunk = tmp_path / "trunk"
        written(theirs, trunk)
        names = load_file(trunk / "model.safetensors").keys()
        save_file({name: released[name].contiguous() for name in names}, trunk / "model.safetensors", {"format": "pt"})
        theirs = type(theirs).from_pretrained(trunk, dtype=torch.float64, attn_implementation="eager")
        theirs.config._experts_implementation = "eager"
        block = layers.MtpLayer(theirs.config, type(theirs.model.layers[-1]), type(theirs.model.norm), 2).double()
        mine = {n.removeprefix("model.layers.3."): v for n, v in released.items() if n.startswith("model.layers.3.")}
        own = {name: mine[name] for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight")}
        own["post_norm.weight"] = mine["shared_head.norm.weight"]
        for name in block.mtp_block.state_dict():
            if name == "mlp.experts.gate_up_proj":
                pairs = [[mine[f"mlp.experts.{e}.{p}_proj.weight"] for p in ("gate", "up")] for e in range(8)]
                own[f"mtp_block.{name}"] = torch.stack([torch.cat(pair) for pair in pairs])
            elif name == "mlp.experts.down_proj":
                own[f"mtp_block.{name}"] = torch.stack([mine[f"mlp.experts.{e}.down_proj.weight"] for e in range(8)])
            else:
                own[f"mtp_block.{name}"] = mine[name]
        block.load_state_dict(own)
        h = theirs.model(ids).last_hidden_state[:, :-1]
        positions = torch.arange(11)[None]
        mask = torch.full((1, 1, 11, 11), float("-inf")).triu(1)
        rotary = theirs.model.rotary_emb(h, positions)
        u = block(theirs.model.embed_tokens(ids[:, 1:]), h, rotary, mask, positions, None)
        wanted = theirs.lm_head(u)
    (logits,) = model(ids, mtp=True).aux.mtp
    assert logits.shape == (2, 11, 64)
    assert (logits - wanted).abs().max() < 1e-9


def test_the_blocks_are_saved_behind_the_layers_with_what_they_share(tmp_path: Path) -> None:
    model, ids = drawn(2).float(), random_ids(1, 9, vocab=64)
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for n in (3, 4):
        assert torch.equal(tensors[f"model.layers.{n}.embed_tokens.weight"], tensors["model.embed_tokens.weight"])
        assert torch.equal(tensors[f"model.layers.{n}.shared_head.head.weight"], tensors["lm_head.weight"])
    again = load_model(tmp_path)
    for a, b in zip(again(ids, mtp=True).aux.mtp, model(ids, mtp=True).aux.mtp, strict=True):
        assert torch.equal(a, b)
    without = {name: v for name, v in tensors.items() if "embed_tokens" not in name or ".layers." not in name}
    save_file(without, tmp_path / "model.safetensors")
    assert torch.equal(load_model(tmp_path).model.mtp[1].norm.weight, model.model.mtp[1].norm.weight)


def test_every_parameter_of_a_block_is_trained_and_nothing_leaks_from_the_future() -> None:
    model, ids = tiny(num_nextn_predict_layers=1), random_ids(2, 10)
    (logits,) = model(ids, mtp=True).aux.mtp
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.norm() > 0 for p in model.model.mtp.parameters())
    later = ids.clone()
    later[:, 7:] = (later[:, 7:] + 1) % 32
    assert (model(later, mtp=True).aux.mtp[0][:, :6] - logits[:, :6]).abs().max() < 1e-12
    padded = model(ids, mtp=True, packing=Packing(lengths=torch.tensor([10, 6]))).aux.mtp[0]
    assert (padded[1, :5] - logits[1, :5]).abs().max() < 1e-9
