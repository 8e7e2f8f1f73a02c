"""Latent mixture of experts: the router sees the full width, the routed experts work in a narrow latent.

    zl = W_down x;   u = sum_{e in top-k} p_e FFN_e(zl);   y = W_up RMSNorm(u) + shared(x)

Shapes: N tokens, D model, Z latent, I expert width, E experts, k experts a token.
Source: Kimi K3 report §2.2; reference/architecture.md §7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland import kernels
from overland.model.capacity import Capacity
from overland.model.config import DecoderConfig
from overland.model.dispatch import Dispatch, dispatch_locally
from overland.model.feed_forward import FeedForward
from overland.model.norm import RMSNorm


@dataclass
class Routing:
    """What the router decided for N tokens: recorded once, never recomputed.

    `scores` [N, E] affinities (fp32, without gradient), `experts` [N, k] ids, `counts` [E] tokens that chose each
    expert, `gate` the module whose selection bias balances the load; `kept` [N, k] the choices that found room (None:
    all). `logits` [N, E] carry the gradient that a balancing loss needs; None where no gradient is recorded. Padding
    is left out of scores, counts and logits.
    """

    scores: Tensor
    experts: Tensor
    counts: Tensor
    gate: Router
    kept: Tensor | None = None
    logits: Tensor | None = None


class Choice(NamedTuple):
    """`logits` and `scores` [N, E], the chosen `experts` [N, k] and their `weights` [N, k]."""

    logits: Tensor
    scores: Tensor
    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Sigmoid affinities; the bias chooses, the raw score weighs."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.k, self.scale = config.num_experts_per_token, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.e_score_correction_bias: Tensor

    def forward(self, x_ND: Tensor, replay_Nk: Tensor | None = None) -> Choice:
        """Every token's experts, weights summing to routed_scaling_factor. `replay_Nk` replaces the choice."""
        wide = torch.promote_types(x_ND.dtype, torch.float32)  # selection flips in bf16
        logits_NE = F.linear(x_ND.to(wide), self.weight.to(wide))
        scores_NE = self.affinities(logits_NE)
        if replay_Nk is None:
            replay_Nk = (scores_NE.detach() + self.e_score_correction_bias).topk(self.k, dim=-1).indices
        chosen = scores_NE.gather(-1, replay_Nk)
        weights_Nk = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * self.scale
        return Choice(logits_NE, scores_NE, replay_Nk, weights_Nk)

    @staticmethod
    def affinities(logits_NE: Tensor) -> Tensor:
        """What a logit is worth."""
        return logits_NE.sigmoid()


class Experts(nn.Module):
    """All routed experts of a layer, stacked: gate and up side by side [E, Z, 2I], down [E, I, Z].

    `product(rows, matrices, counts)` multiplies each expert's rows by its matrix; quantisation puts its own here.
    """

    def __init__(self, experts: int, latent: int, width: int, gate_cap: float, up_cap: float) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(experts, latent, 2 * width))
        self.down = nn.Parameter(torch.zeros(experts, width, latent))
        self.count, self.gate_cap, self.up_cap = experts, gate_cap, up_cap
        self.product: Callable[[Tensor, Tensor, Tensor], Tensor] = kernels.grouped_product

    def forward(self, x_MZ: Tensor, counts_E: Tensor) -> Tensor:
        """Rows sorted by expert, counts_E of each; returns [M, Z]."""
        gate, up = self.product(x_MZ, self.gate_up, counts_E).chunk(2, dim=-1)
        return self.product(kernels.situ_glu(gate, up, self.gate_cap, self.up_cap), self.down, counts_E)


class LatentMoE(nn.Module):
    """Routed latent experts plus shared full-width ones.

    `capacity` limits what an expert takes while training (None: nothing is dropped); `dispatch` is how tokens reach
    their experts. Both are set from outside.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        D, Z, I = config.hidden_size, config.routed_expert_hidden_size, config.moe_intermediate_size
        caps = config.activation_situ_beta, config.activation_situ_linear_beta
        self.gate = Router(config)
        self.routed_expert_down_proj = nn.Linear(D, Z, bias=False)
        self.experts = Experts(config.num_experts, Z, I, *caps)
        self.routed_expert_norm = RMSNorm(Z, config.rms_norm_eps)
        self.routed_expert_up_proj = nn.Linear(Z, D, bias=False)
        self.shared_experts = FeedForward(D, config.num_shared_experts * I, *caps)
        self.capacity: Capacity | None = None
        self.dispatch: Dispatch = dispatch_locally

    def forward(
        self, x_BTD: Tensor, valid_BT: Tensor | None = None, replay_Nk: Tensor | None = None
    ) -> tuple[Tensor, Routing]:
        x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
        valid_N = None if valid_BT is None else valid_BT.reshape(-1)
        choice = self.gate(x_ND, replay_Nk)
        kept_Nk = None
        if self.capacity is not None and self.training:
            kept_Nk = self.capacity.kept(choice.experts, choice.weights, self.experts.count, valid_N)
        u_NZ = self.dispatch(
            self.routed_expert_down_proj(x_ND),
            choice.experts,
            choice.weights,
            kept_Nk,
            self.experts,
            self.experts.count,
        )
        y_ND = self.routed_expert_up_proj(self.routed_expert_norm(u_NZ)) + self.shared_experts(x_ND)
        return y_ND.view_as(x_BTD), self._record(choice, kept_Nk, valid_N)

    def _record(self, choice: Choice, kept_Nk: Tensor | None, valid_N: Tensor | None) -> Routing:
        scores, experts = choice.scores.detach(), choice.experts
        logits = choice.logits if choice.logits.requires_grad else None
        if valid_N is not None:
            scores, experts = scores[valid_N], experts[valid_N]
            logits = None if logits is None else logits[valid_N]
        counts = torch.bincount(experts.reshape(-1), minlength=scores.shape[-1])
        return Routing(scores, choice.experts, counts, self.gate, kept_Nk, logits)
