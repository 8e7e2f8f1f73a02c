"""A vision block: attention among all patches of one image, and a two-layer feed-forward, each behind a norm.

    x <- x + W_o attend( W_qkv norm0(x) );   x <- x + fc1( gelu_tanh( fc0( norm1(x) ) ) )

Shapes: N patches of all images, D vision width, H heads, K head dim; heads may be wider together than D.
Source: reference/architecture.md §10.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overland.model.config import VisionConfig
from overland.model.norm import RMSNorm
from overland.model.vision.positions import Rotary2D, rotate_pairs


class VisionMLP(nn.Module):
    """D to the feed-forward's width and back."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.fc0 = nn.Linear(vision.width, vision.mlp_width, bias=False)
        self.fc1 = nn.Linear(vision.mlp_width, vision.width, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.fc1(F.gelu(self.fc0(x_ND), approximate="tanh"))


class VisionBlock(nn.Module):
    """[N, D] to [N, D]; `lengths` are the patches of each image, which see one another and nothing else."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.H, self.K = vision.heads, vision.qkv_width // vision.heads
        self.norm0, self.norm1 = RMSNorm(vision.width, vision.norm_eps), RMSNorm(vision.width, vision.norm_eps)
        self.wqkv = nn.Linear(vision.width, 3 * vision.qkv_width, bias=False)
        self.wo = nn.Linear(vision.qkv_width, vision.width, bias=False)
        self.mlp = VisionMLP(vision)

    def forward(self, x_ND: Tensor, rotary: Rotary2D, lengths: Sequence[int]) -> Tensor:
        q_NHK, k_NHK, v_NHK = self.wqkv(self.norm0(x_ND)).unflatten(-1, (3, self.H, self.K)).unbind(-3)
        q_NHK, k_NHK = rotate_pairs(q_NHK, rotary), rotate_pairs(k_NHK, rotary)
        x_ND = x_ND + self.wo(attend_within(q_NHK, k_NHK, v_NHK, lengths).flatten(-2))
        return x_ND + self.mlp(self.norm1(x_ND))


def attend_within(q_NHK: Tensor, k_NHK: Tensor, v_NHK: Tensor, lengths: Sequence[int]) -> Tensor:
    """softmax(q.k K^-0.5) v among the patches of each image, in both directions, [N, H, K]."""
    images = zip(*(x_NHK.split(list(lengths)) for x_NHK in (q_NHK, k_NHK, v_NHK)), strict=True)
    heads_first = ([x_NHK.transpose(0, 1)[None] for x_NHK in image] for image in images)
    return torch.cat([F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1) for q, k, v in heads_first])
