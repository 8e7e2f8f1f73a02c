"""The absorbed form of MLA against the expanded one."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny

from overland.model.context import Context, visible
from overland.model.mla import MLA


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_absorbed_equals_expanded(dtype: torch.dtype, tolerance: float) -> None:
    mla = next(m for m in tiny(dtype).modules() if isinstance(m, MLA))
    gen = torch.Generator().manual_seed(0)
    lengths, T, S = torch.tensor([3, 7]), 5, 12
    q = torch.randn(2, T, mla.H, mla.N + mla.R, generator=gen).to(dtype)
    e = torch.randn(2, S, mla.L + mla.R, generator=gen).to(dtype)
    mask = visible(Context(lengths_B=lengths), T, S, q.device)
    assert (mla.absorbed(q, e, mask) - mla.expanded(q, e, mask)).abs().max() < tolerance


def test_a_mask_with_lengths_hides_later_tokens_and_junk_slots() -> None:
    mask = visible(Context(lengths_B=torch.tensor([0, 2])), 2, 4, torch.device("cpu"))
    assert mask is not None
    assert mask.int().tolist() == [[[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]]
