"""Multi-token prediction: one more block that sees the next token's embedding beside the stream, and predicts the token
after it.

    u = W [norm_e(embed(x_{t+1})) ; norm_h(h_t)];   u = block(u);   logits for x_{t+2} = head(norm(u))

Embedding and head are the main model's. DeepSeek feeds h after the final norm, Kimi before it; the block has a standard
residual. Further blocks read the one before.
Shapes: B batch, T tokens, D model. Source: DeepSeek-V3 report §2.2; Transformers 5.24; reference/architecture.md §9.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overland.model.config import DecoderConfig, LayerConfig
from overland.model.context import Context
from overland.model.layer import DecoderLayer, Record
from overland.model.norm import RMSNorm


class MTP(nn.Module):
    """One prediction block; `forward` returns the normed stream [B, T, D] that the head reads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        D, eps = config.hidden_size, config.rms_norm_eps
        self.enorm, self.hnorm = RMSNorm(D, eps), RMSNorm(D, eps)
        self.eh_proj = nn.Linear(2 * D, D, bias=False)
        self.block = DecoderLayer(block_config(config), 0)
        self.norm = RMSNorm(D, eps)

    def forward(self, e_BTD: Tensor, h_BTD: Tensor, context: Context) -> tuple[Tensor, Record]:
        u_BTD = self.eh_proj(torch.cat([self.enorm(e_BTD), self.hnorm(h_BTD)], dim=-1))
        u_BTD, _, record = self.block(u_BTD, [], context)
        return self.norm(u_BTD), record


def block_config(config: DecoderConfig) -> DecoderConfig:
    """One layer like the model's last one, with a standard residual."""
    last = config.layers[-1]
    layer = LayerConfig(mixer=last.mixer, feed_forward=last.feed_forward, window=last.window)
    return config.model_copy(update={"layers": (layer,), "attn_res_block": None, "mtp_layers": 0})
