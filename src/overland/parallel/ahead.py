"""Multi-token prediction over ranks that share out tokens: a block reads embeddings that lie up to `ahead` tokens on.

The first tokens of the next rank travel one place back, D numbers each; behind the last token stand zeros, marked as
padding, so that the router and the indexer leave them out. The stream keeps its length, so its last rows predict
nothing: their labels are to be ignored.

Shapes: B batch, T tokens of a row, t this rank's, D model. Source: parallel of model/mtp.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from overland.model.context import Context
from overland.model.decoder import DecoderModel, Stream


def predict_ahead(
    model: DecoderModel, tokens: dist.ProcessGroup, s_BtD: Tensor, stream: Stream, context: Context
) -> list[Tensor]:
    """DecoderModel.predict_ahead on this rank's tokens; every block's output keeps all of them, [B, t, D]."""
    B, T = s_BtD.shape[0], s_BtD.shape[1] * tokens.size()
    h_BtD = stream.raw if model.config.mtp_before_norm else stream.normed
    out = []
    for ahead, block in enumerate(model.mtp, start=1):
        real_BT = context.valid_BT if context.valid_BT is not None else s_BtD.new_ones(B, T, dtype=torch.bool)
        real_BT = real_BT & (torch.arange(T, device=s_BtD.device) < T - ahead)
        h_BtD, record = block(from_next(s_BtD, ahead, tokens), h_BtD, replace(context, valid_BT=real_BT))
        stream.aux.add(record)
        out.append(h_BtD)
    return out


def from_next(x_BtD: Tensor, count: int, tokens: dist.ProcessGroup) -> Tensor:
    """`x` moved `count` tokens back: the next rank's first ones at the end, zeros on the last rank."""
    first = neighbour(x_BtD[:, :count], tokens, -1)
    return torch.cat([x_BtD[:, count:], first], dim=1)


def neighbour(x: Tensor, group: dist.ProcessGroup, step: int) -> Tensor:
    """What the rank `step` places before this one passes on: its `x`; zeros where there is none before.

    An all-to-all in which every rank sends to one other at most, so `x` is all that a rank sends.
    """
    ranks, rank = group.size(), group.rank()
    to, source = rank + step, rank - step
    sends, comes = 0 <= to < ranks, 0 <= source < ranks
    flat = x.reshape(-1)
    sent = flat if sends else flat[:0]
    send = [sent.numel() if other == to else 0 for other in range(ranks)]
    receive = [flat.numel() if other == source else 0 for other in range(ranks)]
    found = all_to_all_single_autograd(sent.contiguous(), receive, send, group)
    missing = flat.new_zeros(0 if comes else flat.numel())
    return torch.cat([found, missing]).view(x.shape)
