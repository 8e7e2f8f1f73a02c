"""Depthwise causal convolution over time with a handful of taps.

    y_t[c] = sum_j w[c, j] u_{t - (W-1) + j}[c]

Shapes: B batch, T tokens, C channels, W taps. Source: Kimi Linear (2025) §4; reference/architecture.md §4.2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def short_conv(
    u_BTC: Tensor, w_CW: Tensor, tail: Tensor | None = None, documents_BT: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns y [B, T, C] and the inputs with their history [B, W-1+T, C], from which the next tail is taken.

    `tail` [B, W-1, C] holds the inputs before the first token (zeros when None). A tap does not reach over a boundary
    of `documents_BT` (an id must not come back later in its row); the tail belongs to the document of the first token.
    """
    T, W = u_BTC.shape[1], w_CW.shape[1]
    if tail is None:
        history = torch.nn.functional.pad(u_BTC, (0, 0, W - 1, 0))
    else:
        history = torch.cat([tail, u_BTC], dim=1)
    y = history[:, W - 1 :] * w_CW[:, W - 1]
    for j in range(W - 1):
        shifted = history[:, j : j + T]
        if documents_BT is not None:
            padded = torch.nn.functional.pad(documents_BT, (W - 1, 0), value=0)
            padded[:, : W - 1] = documents_BT[:, :1]
            shifted = shifted * (padded[:, j : j + T] == documents_BT)[..., None].to(u_BTC.dtype)
        y = y + shifted * w_CW[:, j]
    return y, history
