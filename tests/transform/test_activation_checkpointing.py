"""Layers that are run again in the backward pass: the gradients bit for bit, what was chosen, and what is held."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import random_ids, tiny
from torch import Tensor, nn
from train.helpers import toy_dialogues

from overland.model import Capacity, Decoder, Packing, limit_experts, load_model
from overland.model.moe import Router
from overland.train import group_by_prefix, run_groups
from overland.transform import checkpoint_layers, uncheckpoint_layers

SPARSE = {"dsa_config": {"num_heads": 4, "head_dim": 8, "topk": 6}}


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def loss_of(model: Decoder, **options: Any) -> Tensor:
    """Of the logits and of everything else that carries a gradient."""
    out = model(random_ids(2, 24), **options)
    total = out.logits.square().mean() + sum(r.logits.square().mean() for r in out.aux.router)
    return total + sum(r.kl.mean() for r in out.aux.indexer if r.kl is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {}),
        ({}, {"packing": Packing(documents=torch.tensor([[0] * 9 + [1] * 15, [0] * 20 + [1] * 4]))}),
        (SPARSE, {}),
        (SPARSE, {"indexer_stage": "sparse"}),
        (SPARSE, {"indexer_stage": "dense"}),
        ({"attn_res_block_size": None}, {"packing": Packing(lengths=torch.tensor([24, 7]))}),
    ],
)
def test_gradients_are_the_same_bits(dtype: torch.dtype, changes: dict[str, Any], options: dict[str, Any]) -> None:
    model = tiny(dtype, **changes)
    limit_experts(model.train(), Capacity(1.0, "score"))
    wanted = gradients(model, loss_of(model, **options))
    checkpoint_layers(model)
    assert equal(gradients(model, loss_of(model, **options)), wanted)
    copied = copy.deepcopy(model)
    assert equal(gradients(copied, loss_of(copied, **options)), wanted)
    uncheckpoint_layers(model)
    assert equal(gradients(model, loss_of(model, **options)), wanted)


def test_caches_that_carry_a_gradient_are_appended_to_once() -> None:
    model, groups = load_model("nano"), group_by_prefix(toy_dialogues(6), 3)

    def loss() -> Tensor:
        return run_groups(model, groups, torch.device("cpu")).logits.square().mean()

    wanted = gradients(model, loss())
    checkpoint_layers(model)
    assert equal(gradients(model, loss()), wanted)


def test_what_was_chosen_is_not_chosen_again() -> None:
    """A selection bias that moves between the two runs would send the tokens to other experts."""
    model = checkpoint_layers(tiny(**SPARSE))
    wanted = gradients(model, loss_of(model))
    loss = loss_of(model)
    for module in model.modules():
        if isinstance(module, Router):
            module.e_score_correction_bias.copy_(-10 * module.e_score_correction_bias)
    assert equal(gradients(model, loss), wanted)
    assert not equal(gradients(model, loss_of(model)), wanted)


def test_less_is_held_until_the_backward_pass() -> None:
    def held(model: Decoder) -> int:
        sizes: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss_of(model)
        return sum(sizes.values())

    assert 4 * held(checkpoint_layers(tiny())) < held(tiny())


@torch.no_grad()
def test_without_gradients_nothing_changes() -> None:
    model, ids = tiny(), random_ids(2, 24)
    wanted = model(ids).logits
    assert torch.equal(checkpoint_layers(model)(ids).logits, wanted)
    cache = model.new_cache(2)
    parts = [model(ids[:, at : at + 8], cache=cache).logits for at in (0, 8, 16)]
    assert (torch.cat(parts, 1) - wanted).abs().max() < 1e-9
