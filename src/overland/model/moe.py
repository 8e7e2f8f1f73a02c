"""Latent mixture of experts: the router sees the full width, the routed experts work in a narrow latent.

    zl = W_down x;   u = sum_{e in top-k} p_e FFN_e(zl);   y = W_up RMSNorm(u) + shared(x)

Shapes: N tokens, D model, Z latent, I expert width, E experts, k experts a token.
Source: Kimi K3 report §2.2; reference/architecture.md §7.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland import kernels
from overland.model.config import DecoderConfig
from overland.model.feed_forward import FeedForward
from overland.model.norm import RMSNorm


@dataclass
class Routing:
    """What the router decided for N tokens: recorded once, never recomputed.

    `scores` [N, E] sigmoid affinities (fp32, without gradient), `experts` [N, k] ids, `counts` [E] tokens of each
    expert, `gate` the module whose selection bias balances the load. Padding is left out of scores and counts.
    """

    scores: Tensor
    experts: Tensor
    counts: Tensor
    gate: Router


class Router(nn.Module):
    """Sigmoid affinities; the bias chooses, the raw score weighs."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.k, self.scale = config.num_experts_per_token, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.e_score_correction_bias: Tensor

    def forward(self, x_ND: Tensor, replay_Nk: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns scores [N, E], chosen experts [N, k] and their weights [N, k] (sum = routed_scaling_factor)."""
        wide = torch.promote_types(x_ND.dtype, torch.float32)  # selection flips in bf16
        scores_NE = F.linear(x_ND.to(wide), self.weight.to(wide)).sigmoid()
        if replay_Nk is None:
            replay_Nk = (scores_NE.detach() + self.e_score_correction_bias).topk(self.k, dim=-1).indices
        chosen = scores_NE.gather(-1, replay_Nk)
        return scores_NE, replay_Nk, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * self.scale


class Experts(nn.Module):
    """All routed experts of a layer, stacked: gate and up side by side [E, Z, 2I], down [E, I, Z]."""

    def __init__(self, experts: int, latent: int, width: int, gate_cap: float, up_cap: float) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(experts, latent, 2 * width))
        self.down = nn.Parameter(torch.zeros(experts, width, latent))
        self.gate_cap, self.up_cap = gate_cap, up_cap

    def forward(self, x_MZ: Tensor, counts_E: Tensor) -> Tensor:
        """Rows sorted by expert, counts_E of each; returns [M, Z]."""
        gate, up = kernels.grouped_product(x_MZ, self.gate_up, counts_E).chunk(2, dim=-1)
        return kernels.grouped_product(kernels.situ_glu(gate, up, self.gate_cap, self.up_cap), self.down, counts_E)


class LatentMoE(nn.Module):
    """Routed latent experts plus shared full-width ones."""

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

    def forward(
        self, x_BTD: Tensor, valid_BT: Tensor | None = None, replay_Nk: Tensor | None = None
    ) -> tuple[Tensor, Routing]:
        x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
        scores_NE, experts_Nk, weights_Nk = self.gate(x_ND, replay_Nk)
        u_NZ = self._routed(self.routed_expert_down_proj(x_ND), experts_Nk, weights_Nk)
        y_ND = self.routed_expert_up_proj(self.routed_expert_norm(u_NZ)) + self.shared_experts(x_ND)
        return y_ND.view_as(x_BTD), self._record(scores_NE, experts_Nk, valid_BT)

    def _routed(self, z_NZ: Tensor, experts_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        """The weighted sum of the chosen experts' outputs, accumulated in fp32 at least."""
        N, k = experts_Nk.shape
        flat = experts_Nk.reshape(-1)
        order = flat.argsort(stable=True)
        counts_E = torch.bincount(flat, minlength=self.experts.down.shape[0])
        y_MZ = self.experts(z_NZ[order // k], counts_E)
        back = torch.empty_like(order)
        back[order] = torch.arange(N * k, device=order.device)
        y_NkZ = y_MZ[back].view(N, k, -1)
        return torch.einsum("nkz,nk->nz", y_NkZ.to(weights_Nk.dtype), weights_Nk).to(z_NZ.dtype)

    def _record(self, scores_NE: Tensor, experts_Nk: Tensor, valid_BT: Tensor | None) -> Routing:
        scores, experts = scores_NE.detach(), experts_Nk
        if valid_BT is not None:
            real = valid_BT.reshape(-1)
            scores, experts = scores[real], experts[real]
        counts = torch.bincount(experts.reshape(-1), minlength=scores.shape[-1])
        return Routing(scores, experts_Nk, counts, self.gate)
