"""Attention to cached latents, whose first L columns are their own values: how MLA decodes.

    m_th = sum_s softmax_s(q_th . e_s scale) e_s[:L],  s up to and including the query's own slot

Shapes: B rows, T queries, S slots, H heads, X width of a latent with its shared key, L width of the latent.
Source: DeepSeek-V2 §2.1 (the absorbed form); reference/architecture.md §5.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland.kernels.compiled import Compiled

_native = Compiled("latent_attention", attend="ppppp iiiiii d")


def attend_latents(q_BTHX: Tensor, e_BSX: Tensor, seen_B: Tensor, latent: int, scale: float) -> Tensor:
    """Averaged latents [B, T, H, L] for queries that stand at slots seen_B, seen_B + 1, ...; later slots are junk."""
    learns = torch.is_grad_enabled() and (q_BTHX.requires_grad or e_BSX.requires_grad)
    if learns or not _native.runs(q_BTHX, e_BSX):
        return attend_latents_reference(q_BTHX, e_BSX, seen_B, latent, scale)
    (B, T, H, X), S = q_BTHX.shape, e_BSX.shape[1]
    if int(seen_B.max()) + T > S:
        raise IndexError(f"{int(seen_B.max())} tokens seen and {T} queries do not fit into {S} slots")
    m, scratch = q_BTHX.new_empty(B, T, H, latent), q_BTHX.new_empty(H, S)
    sizes = (B, T, H, X, latent, S, scale)
    _native("attend", m, scratch, q_BTHX.contiguous(), e_BSX.contiguous(), seen_B.contiguous(), *sizes)
    return m


def attend_latents_reference(q_BTHX: Tensor, e_BSX: Tensor, seen_B: Tensor, latent: int, scale: float) -> Tensor:
    """The formula as it stands."""
    B, T, H, X = q_BTHX.shape
    e_BSX = e_BSX[:, : int(seen_B.max()) + T]
    scores = (q_BTHX.reshape(B, T * H, X) @ e_BSX.transpose(1, 2)).view(B, T, H, -1) * scale
    at = seen_B[:, None] + torch.arange(T, device=seen_B.device)
    hidden = torch.arange(e_BSX.shape[1], device=seen_B.device) > at[..., None]
    scores = scores.masked_fill(hidden[:, :, None], float("-inf"))
    weights = scores.softmax(-1, dtype=torch.promote_types(q_BTHX.dtype, torch.float32)).to(q_BTHX.dtype)
    return (weights.view(B, T * H, -1) @ e_BSX[..., :latent]).view(B, T, H, latent)
