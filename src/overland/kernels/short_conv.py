"""SiLU of a depthwise causal convolution over time with a handful of taps.

    y_t[c] = silu( sum_j w[c, j] u_{t - (W-1) + j}[c] )

Shapes: B batch, T tokens, P channels of a part, C channels of all parts, W taps.
Source: Kimi Linear (2025) §4; reference/architecture.md §4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("short_conv", conv_forward="ppppppp iiiiii", conv_backward="pppppppppp iiiiii")


def short_conv(
    parts_BTP: Sequence[Tensor],
    taps_PW: Sequence[Tensor],
    tail_BWC: Tensor | None = None,
    documents_BT: Tensor | None = None,
    lengths_B: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Convolve each part with its own taps. Returns the outputs [B, T, P] and the next tail [B, W-1, C].

    The tail holds the inputs before the first token, the parts' channels side by side (zeros when None); the next one
    holds those before token T, or before token `lengths_B` of each row where later ones are padding. A tap does not
    reach over a boundary of `documents_BT` (an id must not come back later in its row); the tail belongs to the
    document of the first token.
    """
    tail = () if tail_BWC is None else (tail_BWC,)
    if _native.runs(*parts_BTP, *taps_PW, *tail) and taps_PW[0].shape[-1] in (2, 3, 4):
        *outputs, next_tail = _CompiledConv.apply(tail_BWC, documents_BT, lengths_B, *parts_BTP, *taps_PW)
        return outputs, next_tail
    return short_conv_reference(parts_BTP, taps_PW, tail_BWC, documents_BT, lengths_B)


def short_conv_reference(
    parts_BTP: Sequence[Tensor],
    taps_PW: Sequence[Tensor],
    tail_BWC: Tensor | None = None,
    documents_BT: Tensor | None = None,
    lengths_B: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """The formula with shifted copies."""
    T, W = parts_BTP[0].shape[1], taps_PW[0].shape[-1]
    u_BTC, w_CW = torch.cat(list(parts_BTP), dim=-1), torch.cat(list(taps_PW))
    history = F.pad(u_BTC, (0, 0, W - 1, 0)) if tail_BWC is None else torch.cat([tail_BWC, u_BTC], dim=1)
    y = history[:, W - 1 :] * w_CW[:, W - 1]
    for j in range(W - 1):
        shifted = history[:, j : j + T]
        if documents_BT is not None:
            padded = F.pad(documents_BT, (W - 1, 0), value=0)
            padded[:, : W - 1] = documents_BT[:, :1]
            shifted = shifted * (padded[:, j : j + T] == documents_BT)[..., None].to(u_BTC.dtype)
        y = y + shifted * w_CW[:, j]
    if lengths_B is None:
        next_tail = history[:, T:]
    else:
        at = lengths_B[:, None] + torch.arange(W - 1, device=history.device)
        next_tail = history.gather(1, at[..., None].expand(-1, -1, history.shape[-1]))
    return list(F.silu(y).split([part.shape[-1] for part in parts_BTP], dim=-1)), next_tail


class _CompiledConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tail: Tensor | None, documents: Tensor | None, lengths: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        half = len(tensors) // 2
        us, ws = [u.contiguous() for u in tensors[:half]], [w.contiguous() for w in tensors[half:]]
        tail = None if tail is None else tail.contiguous()
        ctx.save_for_backward(tail, documents, lengths, *us, *ws)
        ctx.set_materialize_grads(False)
        (B, T, _), W, C = us[0].shape, ws[0].shape[-1], sum(u.shape[-1] for u in us)
        next_tail, outputs, first = us[0].new_empty(B, W - 1, C), [torch.empty_like(u) for u in us], 0
        for y, u, w in zip(outputs, us, ws, strict=True):
            sizes = (B, T, u.shape[-1], W, first, C)
            _native("conv_forward", y, next_tail, u, w, tail, documents, lengths, *sizes)
            first += u.shape[-1]
        return *outputs, next_tail

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tail, documents, lengths, *tensors = ctx.saved_tensors
        half = len(tensors) // 2
        us, ws = tensors[:half], tensors[half:]
        d_next = gradients[-1].contiguous() if gradients[-1] is not None else None
        d_tail = None if tail is None else torch.empty_like(tail)
        (B, T, _), W, C = us[0].shape, ws[0].shape[-1], sum(u.shape[-1] for u in us)
        d_us, d_ws, first = [torch.empty_like(u) for u in us], [torch.zeros_like(w) for w in ws], 0
        for d_u, d_w, d, u, w in zip(d_us, d_ws, gradients[:-1], us, ws, strict=True):
            d_y, sizes = torch.zeros_like(u) if d is None else d.contiguous(), (B, T, u.shape[-1], W, first, C)
            _native("conv_backward", d_u, d_w, d_tail, d_y, d_next, u, w, tail, documents, lengths, *sizes)
            first += u.shape[-1]
        return d_tail, None, None, *d_us, *d_ws
