"""Mixture of experts: routed ones, chosen per token by a router, and shared ones that every token uses.

    full width   y = sum_{e in top-k} p_e FFN_e(x) + shared(x)
    latent       zl = W_down x;  u = sum_{e in top-k} p_e FFN_e(zl);  y = W_up RMSNorm(u) + shared(x)

The router sees the full width either way. Its scores are sigmoids (a bias then helps to choose, the raw score weighs)
or one softmax; with groups only the best groups' experts can be chosen.

Shapes: N tokens, D model, Z latent, I expert width, E experts, k experts a token.
Source: Kimi K3 report §2.2; DeepSeek-V3 report §2.1.2; Mixtral (Jiang et al. 2024); reference/architecture.md §7.
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
from overland.model.config import ActivationConfig, DecoderConfig
from overland.model.dispatch import Dispatch, dispatch_locally
from overland.model.feed_forward import FeedForward, gated, step_caps
from overland.model.norm import RMSNorm
from overland.model.stepping import plain_weights, untouched


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
    """Affinities; the bias helps to choose, the raw score weighs."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.moe is not None
        moe = config.moe
        self.k, self.scale, self.renormalize, self.score = moe.top_k, moe.scale, moe.renormalize, moe.score
        self.groups, self.k_groups = moe.groups, moe.top_k_groups
        self.weight = nn.Parameter(torch.zeros(moe.experts, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(moe.experts)) if moe.bias else None
        self.register_buffer("e_score_correction_bias", torch.zeros(moe.experts), persistent=moe.selection_bias)
        self.e_score_correction_bias: Tensor

    def forward(self, x_ND: Tensor, replay_Nk: Tensor | None = None) -> Choice:
        """Every token's experts, weights summing to `scale` where renormalised. `replay_Nk` replaces the choice."""
        wide = torch.promote_types(x_ND.dtype, torch.float32)  # selection flips in bf16
        logits_NE = F.linear(x_ND.to(wide), self.weight.to(wide), None if self.bias is None else self.bias.to(wide))
        if self.score == "sigmoid" and self.groups == 1:
            bias_E = self.e_score_correction_bias.to(wide)
            chosen = kernels.choose_experts(logits_NE, bias_E, self.k, replay_Nk, self.renormalize, self.scale)
            return Choice(logits_NE, *chosen)
        scores_NE = self.affinities(logits_NE)
        if replay_Nk is None:
            replay_Nk = self._reachable(scores_NE.detach() + self.e_score_correction_bias).topk(self.k, dim=-1).indices
        weights_Nk = scores_NE.gather(-1, replay_Nk)
        if self.renormalize:
            weights_Nk = weights_Nk / (weights_Nk.sum(-1, keepdim=True) + 1e-20)
        return Choice(logits_NE, scores_NE, replay_Nk, weights_Nk * self.scale)

    def affinities(self, logits_NE: Tensor) -> Tensor:
        """What a logit is worth."""
        return logits_NE.sigmoid() if self.score == "sigmoid" else logits_NE.softmax(-1)

    def _reachable(self, biased_NE: Tensor) -> Tensor:
        """-inf outside a token's best groups; a group is as good as its two best experts together."""
        if self.groups == 1:
            return biased_NE
        grouped = biased_NE.view(-1, self.groups, biased_NE.shape[-1] // self.groups)
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.k_groups, dim=-1).indices
        closed = torch.ones(grouped.shape[:2], dtype=torch.bool, device=best.device).scatter(1, best, False)
        return grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)


class Experts(nn.Module):
    """All routed experts of a layer, stacked: gate and up side by side [E, Z, 2I], down [E, I, Z].

    `product(rows, matrices, counts)` multiplies each expert's rows by its matrix; quantisation puts its own here.
    """

    def __init__(self, experts: int, latent: int, width: int, activation: ActivationConfig, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(experts, latent, 2 * width))
        self.down = nn.Parameter(torch.zeros(experts, width, latent))
        self.gate_up_bias = nn.Parameter(torch.zeros(experts, 2 * width)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(experts, latent)) if bias else None
        self.count, self.activation = experts, activation
        self.product: Callable[[Tensor, Tensor, Tensor], Tensor] = kernels.grouped_product

    def forward(self, x_MZ: Tensor, counts_E: Tensor) -> Tensor:
        """Rows sorted by expert, counts_E of each; returns [M, Z]."""
        gate_up = self.product(x_MZ, self.gate_up, counts_E)
        if self.gate_up_bias is not None:
            gate_up = gate_up + self.gate_up_bias.repeat_interleave(counts_E, dim=0)
        gate, up = gate_up.chunk(2, dim=-1)
        y_MZ = self.product(gated(gate, up, self.activation), self.down, counts_E)
        return y_MZ if self.down_bias is None else y_MZ + self.down_bias.repeat_interleave(counts_E, dim=0)


class MoE(nn.Module):
    """Routed experts, in a latent where the config has one, plus shared full-width ones.

    `capacity` limits what an expert takes while training (None: nothing is dropped); `dispatch` is how tokens reach
    their experts. Both are set from outside.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.moe is not None
        moe, D = config.moe, config.hidden_size
        self.gate = Router(config)
        self.latent = moe.latent is not None
        Z = moe.latent or D
        if self.latent:
            self.routed_expert_down_proj = nn.Linear(D, Z, bias=False)
        self.experts = Experts(moe.experts, Z, moe.width, config.activation, moe.bias)
        if self.latent:
            self.routed_expert_norm = RMSNorm(Z, config.rms_norm_eps)
            self.routed_expert_up_proj = nn.Linear(Z, D, bias=False)
        self.shared_experts = FeedForward(D, moe.shared * moe.width, config.activation) if moe.shared else None
        self.eps = config.rms_norm_eps
        self.capacity: Capacity | None = None
        self.dispatch: Dispatch = dispatch_locally
        self._held = kernels.Held()

    def forward(
        self, x_BTD: Tensor, valid_BT: Tensor | None = None, replay_Nk: Tensor | None = None
    ) -> tuple[Tensor, Routing]:
        """The output [B, T, D] and what was decided."""
        x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
        valid_N = None if valid_BT is None else valid_BT.reshape(-1)
        choice = self.gate(x_ND, replay_Nk)
        kept_Nk = None
        if self.capacity is not None and self.training:
            kept_Nk = self.capacity.kept(choice.experts, choice.weights, self.experts.count, valid_N)
        y_ND = self.dispatch(
            self.routed_expert_down_proj(x_ND) if self.latent else x_ND,
            choice.experts,
            choice.weights,
            kept_Nk,
            self.experts,
            self.experts.count,
        )
        if self.latent:
            y_ND = self.routed_expert_up_proj(self.routed_expert_norm(y_ND))
        if self.shared_experts is not None:
            y_ND = y_ND + self.shared_experts(x_ND)
        return y_ND.view_as(x_BTD), self._record(choice, kept_Nk, valid_N)

    def step(self, reading: kernels.Reading) -> tuple[Tensor, Routing] | None:
        """The residual after the experts for a decoding step, in one kernel, and what was decided; None where the
        kernel cannot stand for this layer, or a part was replaced."""
        gate, experts, shared = self.gate, self.experts, self.shared_experts
        few_groups = gate.groups <= min(kernels.MOST_GROUPS, self.experts.count // 2)
        known = untouched(gate, Router) and gate.bias is None and few_groups
        whole = untouched(experts, Experts) and experts.product is kernels.grouped_product and experts.down_bias is None
        caps = step_caps(experts.activation)
        limited = self.capacity is not None and self.training
        if (
            not known
            or gate.bias is not None
            or not whole
            or caps is None
            or limited
            or self.dispatch is not dispatch_locally
        ):
            return None
        latent: list[Tensor] | list[None] = [None] * 3
        if self.latent:
            linears = plain_weights(self, ("routed_expert_down_proj", "routed_expert_up_proj"))
            norm = plain_weights(self, ("routed_expert_norm",), RMSNorm)
            if linears is None or norm is None:
                return None
            latent = [linears[0], norm[0], linears[1]]
        beside: kernels.GLUWeights | tuple[None, None, None] | None = (None, None, None)
        if shared is not None:
            beside = shared.step_weights() if untouched(shared, FeedForward) else None
        if beside is None:
            return None
        routed = (gate.weight, gate.e_score_correction_bias, experts.gate_up, experts.down)
        weights = kernels.ExpertsWeights(*routed, *latent, *beside)
        if not kernels.steps_ffn(reading, self._held, weights):
            return None
        routes = kernels.Routes(
            gate.k, gate.renormalize, gate.scale, gate.score == "softmax", gate.groups, gate.k_groups
        )
        y, scores_NE, experts_Nk, counts_E = kernels.experts_step(reading, self._held, weights, routes, caps, self.eps)
        return y, Routing(scores_NE, experts_Nk, counts_E, gate)

    def _record(self, choice: Choice, kept_Nk: Tensor | None, valid_N: Tensor | None) -> Routing:
        scores, experts = choice.scores.detach(), choice.experts
        logits = choice.logits if choice.logits.requires_grad else None
        if valid_N is not None:
            scores, experts = scores[valid_N], experts[valid_N]
            logits = None if logits is None else logits[valid_N]
        counts = torch.bincount(experts.reshape(-1), minlength=scores.shape[-1])
        return Routing(scores, choice.experts, counts, self.gate, kept_Nk, logits)
