"""Attention residuals against fla-core's naive form, finite differences, and the plain mean."""

from __future__ import annotations

import torch
from kernels.references import fla_naive
from tiny import random_ids, tiny
from torch import Tensor

from overland.model.attnres import depth_mix
from overland.model.decoder import DecoderLayer


def sources(n: int, *shape: int) -> list[Tensor]:
    gen = torch.Generator().manual_seed(n)
    return [torch.randn(shape, generator=gen, dtype=torch.float64) for _ in range(n)]


def test_equals_fla_core() -> None:
    naive = fla_naive("attnres", "naive_attnres")
    bank = [v.float() for v in sources(5, 2, 3, 8)]
    proj, norm = torch.randn(1, 8), 1 + 0.3 * torch.randn(8)
    wanted = naive(proj[0], bank, norm, rms_eps=1e-5)
    torch.testing.assert_close(depth_mix(bank, proj, norm, 1e-5), wanted, rtol=0, atol=2e-6)


def test_a_zero_projection_is_the_plain_mean() -> None:
    bank = sources(4, 2, 3, 8)
    mixed = depth_mix(bank, torch.zeros(1, 8), torch.ones(8), 1e-5)
    torch.testing.assert_close(mixed, torch.stack(bank).mean(0), rtol=1e-6, atol=0)


def test_gradients_agree_with_finite_differences() -> None:
    proj, norm = sources(1, 1, 4)[0], 1 + 0.1 * sources(2, 4)[0]
    leaves = [x.requires_grad_() for x in (*sources(3, 2, 4), proj, norm)]
    assert torch.autograd.gradcheck(lambda *args: depth_mix(list(args[:3]), args[3], args[4], 1e-5), leaves)


def test_the_first_layers_attention_mixer_is_unused() -> None:
    model = tiny()
    ids = random_ids(2, 9)
    before = model(ids).logits
    before.sum().backward()
    first, second = model.model.layers[0], model.model.layers[1]
    assert isinstance(first, DecoderLayer)
    assert isinstance(second, DecoderLayer)
    assert first.self_attention_res_proj.weight.grad is None
    assert second.self_attention_res_proj.weight.grad is not None
    with torch.no_grad():
        first.self_attention_res_proj.weight.normal_()
        assert torch.equal(model(ids).logits, before)
        second.self_attention_res_proj.weight.normal_()
        assert not torch.equal(model(ids).logits, before)


def test_with_one_block_and_the_last_source_alone_the_stack_is_a_plain_pre_norm_one() -> None:
    """A query that scores the running sum far above the embedding turns attention residuals off."""
    model = tiny(attn_res_block_size=100)
    layer = model.model.layers[1]
    assert isinstance(layer, DecoderLayer)
    low, high = torch.zeros(1, 1, 16, dtype=torch.float64), torch.zeros(1, 1, 16, dtype=torch.float64)
    low[..., 0], high[..., 0] = -1, 1
    with torch.no_grad():
        layer.mlp_res_proj.weight.zero_()[0, 0] = 100.0
    torch.testing.assert_close(layer.mix([low], high, "mlp"), high)
