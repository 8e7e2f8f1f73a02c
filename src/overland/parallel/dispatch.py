"""Expert parallel dispatch: rows travel to the ranks that hold their experts, and their outputs back.

    sort choices by expert -> all-to-all -> sort by local expert -> experts -> undo both -> weighted sum

Bytes of one rank, forward: 2 * (its choices that leave) * Z * element size, and E * 8 for the counts; backward the same
without the counts. Shapes: N tokens, Z width, k experts a token, E experts, R ranks, L = E / R experts of this rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd


class AllToAll:
    """A `Dispatch` over the ranks of `group`; expert e lies on rank e // L."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)

    def __call__(
        self,
        z_NZ: Tensor,
        experts_Nk: Tensor,
        weights_Nk: Tensor,
        kept_Nk: Tensor | None,
        experts: Callable[[Tensor, Tensor], Tensor],
        count: int,
    ) -> Tensor:
        N, k = experts_Nk.shape
        chosen = experts_Nk.reshape(-1)
        if kept_Nk is not None:  # a number beyond the last expert sorts what is dropped to the end
            chosen = chosen.masked_fill(~kept_Nk.reshape(-1), count)
        order = chosen.argsort(stable=True)
        counts_E = torch.bincount(chosen, minlength=count)[:count]
        order = order[: int(counts_E.sum())]

        coming_E = torch.empty_like(counts_E)
        dist.all_to_all_single(coming_E, counts_E, group=self.group)
        coming_RL = coming_E.view(self.ranks, -1)
        send = counts_E.view(self.ranks, -1).sum(1).tolist()
        receive = coming_RL.sum(1).tolist()

        rows = all_to_all_single_autograd(z_NZ[order // k], receive, send, self.group)
        local = torch.arange(coming_RL.shape[1], device=rows.device).repeat(self.ranks)
        by_expert = local.repeat_interleave(coming_E).argsort(stable=True)
        y = experts(rows[by_expert], coming_RL.sum(0))
        y = torch.empty_like(y).index_copy(0, by_expert, y)
        y = all_to_all_single_autograd(y.contiguous(), send, receive, self.group)
        y_NkZ = y.new_zeros(N * k, y.shape[-1]).index_copy(0, order, y).view(N, k, y.shape[-1])
        return torch.einsum("nkz,nk->nz", y_NkZ.to(weights_Nk.dtype), weights_Nk).to(z_NZ.dtype)
