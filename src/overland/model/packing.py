"""How the rows of a batch are filled: several documents in a row, or rows of different length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Marks what belongs together in `input_ids` [B, T].

    `documents` [B, T] integers: where they change, attention, convolutions and KDA state start again. They are
    numbered anew along each row, so that an id which comes back is another document.
    `lengths` [B]: only the first lengths[b] tokens of row b are real; the rest is padding on the right, which changes
    neither the real tokens, nor the cache, nor the routing counts.
    """

    documents: Tensor | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if self.documents is not None:
            starts = self.documents[:, 1:] != self.documents[:, :-1]
            object.__setattr__(self, "documents", F.pad(starts.cumsum(1), (1, 0)))

    def valid(self, batch: int, tokens: int, device: torch.device) -> Tensor | None:
        """Mask [B, T] of the real tokens, or None when all are."""
        if self.lengths is None:
            return None
        return torch.arange(tokens, device=device)[None, :] < self.lengths[:, None]
