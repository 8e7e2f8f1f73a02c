"""Mixers, router and experts against transformers' Kimi-Linear modules on copied weights.

Kimi-Linear has no output gate on MLA, another decay, and SiLU experts; each test says how it bridges that.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny import TINY, tiny
from torch import Tensor, nn

from overland import kernels
from overland.model.kda import KDA
from overland.model.mla import MLA
from overland.model.moe import LatentMoE


@pytest.fixture(scope="module")
def hf() -> ModuleType:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")


def config(hf: ModuleType, **changes: Any) -> Any:
    fields = {k: v for k, v in TINY.items() if k not in ("attn_res_block_size", "routed_expert_hidden_size")}
    made = hf.KimiLinearConfig(**{**fields, "routed_scaling_factor": 1.7, **changes})
    made._attn_implementation = "eager"
    return made


def part(kind: type[nn.Module]) -> Any:
    """The first module of a kind in a tiny fp32 model."""
    return next(m for m in tiny(torch.float32).modules() if isinstance(m, kind))


def copy(ours: nn.Module, theirs: nn.Module, **renamed: str) -> None:
    """Give `theirs` our weights; every one of their parameters must be found."""
    source = dict(ours.state_dict())
    wanted = {name: source[renamed.get(name.replace(".", "_"), name)] for name in theirs.state_dict()}
    theirs.load_state_dict(wanted)


def hidden(T: int, B: int = 2) -> Tensor:
    return torch.randn(B, T, TINY["hidden_size"], generator=torch.Generator().manual_seed(3))  # type: ignore[call-overload]


def test_mla_without_its_gate(hf: ModuleType) -> None:
    ours: MLA = part(MLA)
    theirs = hf.KimiLinearAttention(config(hf), layer_idx=1)
    copy(ours, theirs)
    with torch.no_grad():
        ours.g_proj.weight.zero_()  # an output gate of one half
    x = hidden(13)
    mask = torch.full((13, 13), float("-inf")).triu(1)[None, None]
    assert (2 * ours(x) - theirs(x, mask)[0]).abs().max() < 2e-6


def test_kda_with_the_decay_of_kimi_linear(hf: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ours: KDA = part(KDA)
    theirs = hf.KimiLinearDeltaAttention(config(hf), layer_idx=0)
    H, K = ours.H, ours.K
    with torch.no_grad():
        for name in ("q", "k", "v"):
            getattr(theirs, f"{name}_proj").weight.copy_(getattr(ours, f"{name}_proj").weight)
        theirs.conv1d.weight.copy_(torch.cat([getattr(ours, f"{name}_conv1d").weight for name in ("q", "k", "v")]))
        theirs.b_proj.weight.copy_(ours.b_proj.weight)
        theirs.o_proj.weight.copy_(ours.o_proj.weight)
        theirs.o_norm.weight.copy_(ours.o_norm.weight)
        theirs.forget_gate.f_a_proj.weight.copy_(ours.f_a_proj.weight)
        theirs.forget_gate.f_b_proj.weight.copy_(ours.f_b_proj.weight)
        theirs.forget_gate.dt_bias.copy_(ours.dt_bias)
        theirs.forget_gate.A_log.copy_(ours.A_log.view(1, 1, H, 1))
        gen = torch.Generator().manual_seed(4)
        theirs.g_a_proj.weight.normal_(generator=gen)
        theirs.g_b_proj.weight.normal_(generator=gen)
        ours.g_proj.weight.copy_(theirs.g_b_proj.weight @ theirs.g_a_proj.weight)  # K3's gate has full rank

    def softplus_decay(x: Tensor) -> Tensor:
        z = (ours.f_b_proj(ours.f_a_proj(x)) + ours.dt_bias).view(*x.shape[:2], H, K)
        return -ours.A_log.exp()[:, None] * F.softplus(z)

    monkeypatch.setattr(ours, "_log_decay", softplus_decay)
    monkeypatch.setattr("overland.model.kda.kernels.kda", lambda *args: kernels.kda_chunk(*args, bounded=False))
    x = hidden(70)
    assert (ours(x) - theirs(x)).abs().max() < 5e-5


def test_router_with_a_bias(hf: ModuleType) -> None:
    moe: LatentMoE = part(LatentMoE)
    theirs = hf.KimiLinearTopkRouter(config(hf))
    copy(moe.gate, theirs)
    moe.gate.scale = 1.7
    x = hidden(50).flatten(0, 1)
    _, scores, experts, weights = moe.gate(x)
    logits, their_weights, their_experts = theirs(x)
    torch.testing.assert_close(scores, logits.sigmoid())
    full = torch.zeros_like(scores)
    torch.testing.assert_close(full.scatter(1, experts, weights), full.scatter(1, their_experts, their_weights))


def test_routed_experts_without_caps(hf: ModuleType) -> None:
    moe: LatentMoE = part(LatentMoE)
    moe.double()
    moe.experts.gate_cap = moe.experts.up_cap = 1e6  # so high a cap leaves SiTU the SwiGLU that they have
    theirs = hf.KimiLinearExperts(config(hf, hidden_size=TINY["routed_expert_hidden_size"])).double()
    with torch.no_grad():
        theirs.gate_up_proj.copy_(moe.experts.gate_up.transpose(1, 2))
        theirs.down_proj.copy_(moe.experts.down.transpose(1, 2))
    x = hidden(20).flatten(0, 1).double()
    _, _, experts, weights = moe.gate(x)
    z = moe.routed_expert_down_proj(x)
    mine = moe.dispatch(z, experts, weights, None, moe.experts, moe.experts.count)
    torch.testing.assert_close(mine, theirs(z, experts, weights), rtol=0, atol=1e-9)
