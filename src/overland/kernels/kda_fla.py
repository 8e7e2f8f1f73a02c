"""KDA's chunks by fla-core's Triton kernels, for CUDA tensors: `OVERLAND_KERNELS=fla`.

Never taken by default: it has not been run on a GPU by this project yet. What is checked on the CPU is the way there
and back (documents and rows as sequences of one flat batch), with fla-core's naive form in the kernel's place.
Source: fla-core 0.6, fla/ops/kda/chunk.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overland.errors import UsageError

Chunk = Callable[..., Any]


def triton_chunk_kda() -> Chunk:
    """fla-core's kernel. Raises UsageError where it cannot be loaded."""
    try:
        from fla.ops.kda import chunk_kda
    except ImportError as error:
        needs = f"OVERLAND_KERNELS='fla' needs fla-core and triton ({error})"
        raise UsageError(f"{needs}: pip install 'overland[gpu]'") from None
    return chunk_kda


def kda_fla(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor | None,
    documents_BT: Tensor | None,
    bounded: bool,
    chunk_kda: Chunk,
) -> tuple[Tensor, Tensor]:
    """The same as `kda` without lengths and with unit vectors given. Packed rows become sequences of one flat row."""
    B, T, H, K = q_BTHK.shape
    options: dict[str, Any] = {"scale": 1.0, "output_final_state": True, "safe_gate": bounded}
    if documents_BT is None:
        tensors = (q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH)
        return chunk_kda(*tensors, initial_state=state_BHKV, **options)
    starts = torch.ones(B, T, dtype=torch.bool, device=q_BTHK.device)
    starts[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    begins = starts.flatten().nonzero()[:, 0]
    first = torch.searchsorted(begins, torch.arange(B, device=begins.device) * T)  # of each row, which sequence
    last = torch.cat([first[1:], first.new_tensor([len(begins)])]) - 1
    states = q_BTHK.new_zeros(len(begins), H, K, v_BTHV.shape[-1])
    if state_BHKV is not None:
        states = states.index_copy(0, first, state_BHKV)
    flat = [x.reshape(1, B * T, *x.shape[2:]) for x in (q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH)]
    ends = torch.cat([begins, begins.new_tensor([B * T])])
    o, final = chunk_kda(*flat, initial_state=states, cu_seqlens=ends, **options)
    return o.view(B, T, H, -1), final[last]
