"""What a forward hands to every layer beside the hidden states: where the tokens stand and what they may see.

Shapes: B batch, T new tokens, S tokens seen (cached and new).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from overland.model.config import DecoderConfig
from overland.model.packing import Packing
from overland.model.rope import Rotary, rotary

IndexerStage = Literal["dense", "sparse"]


@dataclass(frozen=True)
class Context:
    """`lengths_B` [B] counts the tokens that each row's cache holds already; None without a cache.

    `rotary` holds the angles of the new tokens; `valid_BT` marks real tokens (None: all). `indexer_stage` asks the
    sparse mixers for their training loss, `keep_selection` for the keys that they kept.
    """

    packing: Packing | None = None
    lengths_B: Tensor | None = None
    rotary: Rotary | None = None
    valid_BT: Tensor | None = None
    indexer_stage: IndexerStage | None = None
    keep_selection: bool = False

    @property
    def documents(self) -> Tensor | None:
        """Document numbers [B, T] of a packed row."""
        return self.packing.documents if self.packing else None


def positions(context: Context, T: int, device: torch.device) -> Tensor:
    """Where each new token stands in its document, [B or 1, T]: behind the cache's tokens; a document starts at 0."""
    at = torch.arange(T, device=device)[None]
    if context.lengths_B is not None:
        return at + context.lengths_B[:, None]
    if context.documents is not None:
        documents = context.documents
        starts = torch.searchsorted(documents, documents)  # the first token with the same number: they ascend
        return at - starts
    return at


def visible(context: Context, T: int, S: int, device: torch.device, window: int | None = None) -> Tensor | None:
    """Who may be seen, [B or 1, T, S] bool; None stands for the plain causal triangle over T = S tokens.

    A query sees itself and what is before it in its document, within the last `window` tokens. Slots past a row's
    length are junk and never seen.
    """
    if context.lengths_B is None and context.documents is None and window is None:
        return None
    if context.lengths_B is not None and context.documents is not None:
        raise ValueError("documents in a packed row and a cache do not go together")
    at_query = torch.arange(T, device=device)[None]
    if context.lengths_B is not None:
        at_query = at_query + context.lengths_B[:, None]
    at_key = torch.arange(S, device=device)[None, None]
    mask = at_key <= at_query[..., None]
    if window is not None:
        mask = mask & (at_key > at_query[..., None] - window)
    if context.documents is not None:
        mask = mask & (context.documents[:, :, None] == context.documents[:, None, :])
    return mask


def visible_range(context: Context, B: int, T: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same as two int64 tensors [B, T]: the first key that each query sees, and the one behind its last."""
    at = torch.arange(T, device=device).expand(B, T)
    if context.lengths_B is not None:
        if context.documents is not None:
            raise ValueError("documents in a packed row and a cache do not go together")
        return torch.zeros_like(at), at + context.lengths_B[:, None] + 1
    if context.documents is not None:
        return at - positions(context, T, device), at + 1
    return torch.zeros_like(at), at + 1


def angles(config: DecoderConfig, context: Context, T: int, dtype: torch.dtype, device: torch.device) -> Rotary | None:
    """The rotary table of the new tokens, where the decoder has one."""
    if config.rope is None:
        return None
    return rotary(config.rope, config.rope_dim, positions(context, T, device), dtype)


def cut(context: Context, T: int) -> Context:
    """The context of the first T tokens of each row."""
    rotary, valid = context.rotary, context.valid_BT
    packing = context.packing
    if packing is not None:
        documents = None if packing.documents is None else packing.documents[:, :T]
        lengths = None if packing.lengths is None else packing.lengths.clamp(max=T)
        packing = Packing(documents, lengths)
    return replace(
        context,
        packing=packing,
        rotary=None if rotary is None else Rotary(rotary.cos[:, :T], rotary.sin[:, :T]),
        valid_BT=None if valid is None else valid[:, :T],
    )
