"""How a sublayer reads the residual and puts its output back, as the fused decoding steps take it.

    y = [s +] f( norm( mix of the sources ) ),   s the last source; with one source the mix is that one

Shapes: N tokens, D model. The plain form is the layer's own forward.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overland.kernels.compiled import PLAIN


class Reading(NamedTuple):
    """`sources` [..., D] (finished blocks, then the running sum), the sublayer's norm [D], the mix's projection [1, D]
    and norm [D]; `keeps` says whether the running sum goes on."""

    sources: Sequence[Tensor]
    norm: Tensor
    eps: float
    depth_proj: Tensor | None = None
    depth_norm: Tensor | None = None
    depth_eps: float = 0.0
    keeps: bool = True

    def fits(self, dtype: torch.dtype | None) -> bool:
        """Whether a compiled step for `dtype` can read all of it: plain tensors of that dtype, whole in memory."""
        read = (*self.sources, self.norm, *(() if self.depth_proj is None else (self.depth_proj, self.depth_norm)))
        return all(
            type(x) in PLAIN and x.dtype is dtype and x.is_cpu and x.is_contiguous() for x in read if x is not None
        )

    @property
    def tokens(self) -> int:
        """N."""
        return self.sources[-1].numel() // self.norm.numel()

    def pointers(self) -> ctypes.Array[ctypes.c_void_p]:
        """In the order in which native/residual.h reads them."""
        weights = (self.norm, self.depth_proj, self.depth_norm)
        addresses = [None if x is None else x.data_ptr() for x in (*weights, *self.sources)]
        return (ctypes.c_void_p * len(addresses))(*addresses)
