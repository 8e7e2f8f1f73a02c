"""How tokens reach their experts and come back: the hook through which expert parallelism fits from outside.

    u_n = sum_j weights_nj FFN_{experts_nj}(z_n)

A plan that shards the experts sets its own `moe.dispatch`: it sends rows to the ranks that hold their experts, calls
`experts(rows, counts)` there with the rows sorted by local expert, and brings the weighted sums home.

Shapes: N tokens, Z latent, k experts a token, M rows = choices that were kept, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from overland import kernels


class Dispatch(Protocol):
    """From tokens and the router's choice to the weighted sum of the experts' outputs [N, Z]."""

    def __call__(
        self,
        z_NZ: Tensor,
        experts_Nk: Tensor,
        weights_Nk: Tensor,
        kept_Nk: Tensor | None,
        experts: Callable[[Tensor, Tensor], Tensor],
        count: int,
    ) -> Tensor:
        """`experts(rows [M, Z] sorted by expert, counts [count]) -> [M, Z]`; choices not in `kept_Nk` are dropped.

        Sums in the dtype of `weights_Nk` (fp32 at least) and returns z's.
        """
        ...


def dispatch_locally(
    z_NZ: Tensor,
    experts_Nk: Tensor,
    weights_Nk: Tensor,
    kept_Nk: Tensor | None,
    experts: Callable[[Tensor, Tensor], Tensor],
    count: int,
) -> Tensor:
    """All experts are here: sort the rows by expert, run them, put them back."""
    if kept_Nk is not None:
        return _some_dropped(z_NZ, experts_Nk, weights_Nk, kept_Nk, experts, count)
    rows_MZ, back_Nk, counts_E = kernels.rows_by_expert(z_NZ, experts_Nk, count)
    return kernels.weighted_rows(experts(rows_MZ, counts_E), back_Nk, weights_Nk).to(z_NZ.dtype)


def _some_dropped(
    z_NZ: Tensor,
    experts_Nk: Tensor,
    weights_Nk: Tensor,
    kept_Nk: Tensor,
    experts: Callable[[Tensor, Tensor], Tensor],
    count: int,
) -> Tensor:
    """The same with fewer rows: what is dropped adds nothing."""
    N, k = experts_Nk.shape
    chosen = experts_Nk.reshape(-1).masked_fill(~kept_Nk.reshape(-1), count)  # sorts it behind the last expert
    counts_E = torch.bincount(chosen, minlength=count)[:count]
    order = chosen.argsort(stable=True)[: int(counts_E.sum())]
    y_MZ = experts(z_NZ[order // k], counts_E)
    y_NkZ = y_MZ.new_zeros(N * k, y_MZ.shape[-1]).index_copy(0, order, y_MZ).view(N, k, -1)
    return torch.einsum("nkz,nk->nz", y_NkZ.to(weights_Nk.dtype), weights_Nk).to(z_NZ.dtype)
