"""Products with weights that stay packed: y = x W^T, where W's blocks are formed in registers and never in memory.

A decoding step reads every weight once, so its time is the time to bring the weights in: packed they are a quarter of
bf16's bytes. With many rows the arithmetic counts instead, and a matrix is decoded for the time of its product.

Shapes: M rows, K in, N out, E experts; packed weights are uint8 [N, K/2] with scales [N, K/32].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.errors import UsageError
from overland.kernels.compiled import Compiled
from overland.kernels.mxfp4 import MXFP4_BLOCK, mxfp4_decode

MANY_ROWS = 24  # measured: from here on decoding first is quicker
_native = Compiled("mxfp4", (torch.float32,), product="pppppp iii")


def mxfp4_product(x: Tensor, packed_NH: Tensor, scales_NG: Tensor) -> Tensor:
    """`x` [..., K] times the transpose of the packed matrix: [..., N] in x's dtype, summed in fp32 at least."""
    rows_MK = x.reshape(-1, x.shape[-1])
    counts = torch.tensor([len(rows_MK)])
    y_MN = mxfp4_grouped_product(rows_MK, packed_NH.unsqueeze(0), scales_NG.unsqueeze(0), counts)
    return y_MN.view(*x.shape[:-1], -1)


def mxfp4_grouped_product(x_MK: Tensor, packed_ENH: Tensor, scales_ENG: Tensor, counts_E: Tensor) -> Tensor:
    """Row block e of `x_MK` (counts_E[e] rows, in expert order) times its packed matrix transposed: [M, N].

    At most one expert's matrix is decoded at a time. Carries no gradient: packed weights are for inference.
    """
    E, N, H = packed_ENH.shape
    if x_MK.shape[-1] != 2 * H or scales_ENG.shape != (E, N, 2 * H // MXFP4_BLOCK):
        raise UsageError(
            f"MXFP4 product: x {list(x_MK.shape)}, packed {list(packed_ENH.shape)} and scales "
            f"{list(scales_ENG.shape)} do not fit; x has K columns, the others K/2 and K/32"
        )
    wide = x_MK.detach().float().contiguous()
    if x_MK.dtype == torch.float64 or not _native.runs(wide):
        return mxfp4_grouped_product_reference(x_MK, packed_ENH, scales_ENG, counts_E)
    if counts_E.max() <= MANY_ROWS:
        return _few_rows(wide, packed_ENH, scales_ENG, counts_E).to(x_MK.dtype)
    y_MN = torch.empty(len(x_MK), N, dtype=x_MK.dtype)
    start = 0
    for e, count in enumerate(counts_E.tolist()):
        own, part = slice(start, start + count), slice(e, e + 1)
        if count > MANY_ROWS:
            y_MN[own] = F.linear(x_MK[own].detach(), mxfp4_decode(packed_ENH[e], scales_ENG[e], x_MK.dtype))
        elif count:
            y_MN[own] = _few_rows(wide[own], packed_ENH[part], scales_ENG[part], counts_E[part])
        start += count
    return y_MN


def _few_rows(x_MK: Tensor, packed_ENH: Tensor, scales_ENG: Tensor, counts_E: Tensor) -> Tensor:
    E, N, H = packed_ENH.shape
    y_MN, scratch_MK = x_MK.new_empty(len(x_MK), N), torch.empty_like(x_MK)
    weights = packed_ENH.contiguous(), scales_ENG.contiguous()
    _native("product", y_MN, x_MK, *weights, scratch_MK, counts_E.contiguous(), E, N, 2 * H)
    return y_MN


def mxfp4_grouped_product_reference(x_MK: Tensor, packed_ENH: Tensor, scales_ENG: Tensor, counts_E: Tensor) -> Tensor:
    """The same: each expert's matrix decoded, then an ordinary product."""
    parts = []
    for rows, packed, scales in zip(x_MK.split(counts_E.tolist()), packed_ENH, scales_ENG, strict=True):
        parts.append(rows @ mxfp4_decode(packed, scales, x_MK.dtype).T if len(rows) else rows.new_empty(0, len(packed)))
    return torch.cat(parts)
