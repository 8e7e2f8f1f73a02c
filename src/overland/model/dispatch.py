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
    N, k = experts_Nk.shape
    chosen = experts_Nk.reshape(-1)
    if kept_Nk is not None:  # a number beyond the last expert sorts what is dropped to the end
        chosen = chosen.masked_fill(~kept_Nk.reshape(-1), count)
    order = chosen.argsort(stable=True)
    counts_E = torch.bincount(chosen, minlength=count)
    if kept_Nk is not None:
        counts_E = counts_E[:count]
        order = order[: int(counts_E.sum())]
    y_MZ = experts(z_NZ[order // k], counts_E)
    if kept_Nk is None:
        back = torch.empty_like(order)
        back[order] = torch.arange(N * k, device=order.device)
        y_NkZ = y_MZ[back].view(N, k, -1)
    else:
        y_NkZ = y_MZ.new_zeros(N * k, y_MZ.shape[-1]).index_copy(0, order, y_MZ).view(N, k, -1)
    return torch.einsum("nkz,nk->nz", y_NkZ.to(weights_Nk.dtype), weights_Nk).to(z_NZ.dtype)
