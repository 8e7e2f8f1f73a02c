"""Attention of each query to the cached latents that were chosen for it: DSA behind its indexer, in the absorbed form.

    m_th = sum_{s in K_t} softmax_{s in K_t}(q_th . e_s scale) e_s[:L]

Cost and memory go with the number of kept keys, not with the length of the context.
Shapes: B batch, T queries, S slots, H heads, X width of a latent with its shared key, L width of the latent, k kept
keys.
Source: DeepSeek-V3.2 report §2; DeepSeek-V2 §2.1 (the absorbed form); reference/architecture.md §5.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled
from overland.kernels.top_keys import slices

GATHERED_ELEMENTS = 1 << 24  # of the reference's gathered latents at a time, where no gradient keeps them all anyway

_native = Compiled("selected_attention", attend_selected="pppp iiiiiii d")


def attend_selected(q_BTHX: Tensor, e_BSX: Tensor, ids_BTk: Tensor, latent: int, scale: float) -> Tensor:
    """Averaged latents [B, T, H, latent]. `ids_BTk` int64: slots in 0 .. S-1, at least one a query, then -1."""
    learns = torch.is_grad_enabled() and (q_BTHX.requires_grad or e_BSX.requires_grad)
    if learns or not _native.runs(q_BTHX, e_BSX):
        return attend_selected_reference(q_BTHX, e_BSX, ids_BTk, latent, scale)
    (B, T, H, X), S = q_BTHX.shape, e_BSX.shape[1]
    if ids_BTk.numel() and int(ids_BTk.max()) >= S:
        raise IndexError(f"slot {int(ids_BTk.max())} is selected of {S}")
    m = q_BTHX.new_empty(B, T, H, latent)
    sizes = (B, T, H, X, latent, S, ids_BTk.shape[-1], scale)
    _native("attend_selected", m, q_BTHX.contiguous(), e_BSX.contiguous(), ids_BTk.contiguous(), *sizes)
    return m


def attend_selected_reference(q_BTHX: Tensor, e_BSX: Tensor, ids_BTk: Tensor, latent: int, scale: float) -> Tensor:
    """The formula as it stands, some queries at a time; with a gradient for `q_BTHX` and `e_BSX`."""
    B, T, k = ids_BTk.shape
    found = []
    for part in slices(T, B * k * e_BSX.shape[-1], GATHERED_ELEMENTS):
        ids = ids_BTk[:, part]
        at = ids.clamp(min=0).reshape(B, -1, 1).expand(-1, -1, e_BSX.shape[-1])
        e_BTkX = e_BSX.gather(1, at).view(*ids.shape, -1)
        scores = torch.einsum("bthx,btkx->bthk", q_BTHX[:, part], e_BTkX) * scale
        scores = scores.masked_fill((ids < 0)[:, :, None], float("-inf"))
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
        found.append(torch.einsum("bthk,btkl->bthl", weights, e_BTkX[..., :latent]))
    return torch.cat(found, dim=1)
