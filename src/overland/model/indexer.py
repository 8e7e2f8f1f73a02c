"""The lightning indexer: a small scorer that says which earlier tokens a query attends to.

    q_j = W_q r;  k = LayerNorm(W_k x);  w = W_w x / sqrt(J)
    I(t, s) = sum_j w_j(t) relu( q_j(t).k(s) / sqrt(I) );   a query keeps its top-k tokens s by I(t, .)

Its inputs are detached and the choice carries no gradient: a language-model loss trains the model, the indexer's own
loss (model/dsa.py) the indexer, and neither the other.
Shapes: B batch, T queries, S keys, J indexer heads, I indexer dim, Q query latent, D model.
Source: DeepSeek-V3.2 report §2; reference/architecture.md §5.4 and §6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overland.model.config import DecoderConfig
from overland.model.context import Context
from overland.model.rope import rotate


class Indexer(nn.Module):
    """Scores of one sparse layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.indexer is not None
        assert config.mla is not None
        assert config.mla.q_lora_rank is not None
        indexer, D = config.indexer, config.hidden_size
        self.J, self.I, self.topk = indexer.heads, indexer.head_dim, indexer.topk
        self.R = config.mla.rope_dim if indexer.rotate else 0
        self.wq_b = nn.Linear(config.mla.q_lora_rank, self.J * self.I, bias=False)
        self.wk = nn.Linear(D, self.I, bias=False)
        self.k_norm = nn.LayerNorm(self.I, eps=indexer.norm_eps)
        self.weights_proj = nn.Linear(D, self.J, bias=False)

    def keys(self, x_BTD: Tensor, context: Context) -> Tensor:
        """One key per token, [B, T, I], shared by all heads."""
        k = self.k_norm(self.wk(x_BTD.detach()))
        return self._rotated(k[:, :, None], context)[:, :, 0]

    def queries(self, r_BTQ: Tensor, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Queries [B, T, J, I] and the heads' weights [B, T, J] (fp32 at least), both with their scale in them."""
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        q_BTJI = self.wq_b(r_BTQ.detach()).view(*r_BTQ.shape[:2], self.J, self.I)
        w_BTJ = self.weights_proj(x_BTD.detach()).to(wide) * self.J**-0.5
        return self._rotated(q_BTJI, context).to(wide) * self.I**-0.5, w_BTJ

    def _rotated(self, x_BTJI: Tensor, context: Context) -> Tensor:
        """The first R dims turned, as halves (where the model rotates at all)."""
        if self.R == 0:
            return x_BTJI
        assert context.rotary is not None
        first, rest = x_BTJI.split([self.R, self.I - self.R], dim=-1)
        return torch.cat([rotate(first, context.rotary), rest], dim=-1)


def indexer_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What the dense warm-up trains: the indexers' parameters, everything else being frozen."""
    return [p for module in model.modules() if isinstance(module, Indexer) for p in module.parameters()]
