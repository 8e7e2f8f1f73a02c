"""Attention residuals: a sublayer reads a softmax-weighted average of earlier block sums instead of one running sum.

    a_i = (v_i / rms(v_i)) . (p * n);   alpha = softmax_i(a_i);   mix = sum_i alpha_i v_i

Shapes: B batch, T tokens, D model, n depth sources. Source: Kimi K3 report §2.3; reference/architecture.md §2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland import kernels


def depth_mix(sources: list[Tensor], proj_1D: Tensor, norm_D: Tensor, eps: float) -> Tensor:
    """Average `sources` (each [B, T, D]) per token; only the product of `proj_1D` and `norm_D` matters.

    A zero projection gives the plain average. Scores and average are formed in fp32 at least, raw sources averaged.
    """
    wide = torch.promote_types(sources[0].dtype, torch.float32)
    return kernels.depth_mix(sources, proj_1D[0].to(wide) * norm_D.to(wide), eps)
