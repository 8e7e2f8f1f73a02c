"""The vocabulary over ranks: embedding and head keep V / tp rows each, and the loss never forms a whole row of logits.

    -log p(y) = log sum_v exp(l_v - m) - (l_y - m),   m = max_v l_v

Maximum, sum and the target's logit meet over the ranks, 3 numbers a token instead of V: an all-reduce of 1 and one of
2, in fp32 at least; backward gathers one gradient a token.

Shapes: B batch, T tokens of the rows that tp shares, t = T / tp, V vocabulary, v = V / tp.
Source: Shoeybi et al. 2019 §3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from overland.parallel.collectives import gather, part, scatter_sum, split

IGNORED = -100
"""The label of a token without one."""


def spread_embedding(embedding: nn.Embedding, tokens: dist.ProcessGroup, tp: dist.ProcessGroup) -> None:
    """Ids [B, all tokens] to this rank's tokens [B, t, D]; the weight is this rank's rows of the vocabulary.

    `tokens` are the ranks over which context parallel cuts rows.
    """

    def forward(ids_BS: Tensor) -> Tensor:
        ids_BT = part(ids_BS, tokens)
        if tp.size() == 1:
            return F.embedding(ids_BT, embedding.weight)
        at_BT, here_BT = _here(ids_BT, embedding.weight.shape[0], tp)
        e_BTD = F.embedding(at_BT, embedding.weight) * here_BT[..., None].to(embedding.weight.dtype)
        return scatter_sum(e_BTD, tp)

    embedding.forward = forward  # type: ignore[method-assign, assignment]


def spread_head(head: nn.Linear, tp: dist.ProcessGroup) -> None:
    """This rank's tokens [B, t, D] to logits [B, T, v] of all tokens, for this rank's rows of the vocabulary."""

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return gather(args[0], tp), *args[1:]

    head.register_forward_pre_hook(before)


def token_losses(logits_BTv: Tensor, labels_BT: Tensor, tp: dist.ProcessGroup) -> Tensor:
    """-log p(label) of this rank's tokens [B, t], fp32 at least; 0 where the label is IGNORED.

    Every rank of `tp` gives the same labels and its own columns of the logits.
    """
    wide = logits_BTv.to(torch.promote_types(logits_BTv.dtype, torch.float32))
    kept_BT = labels_BT != IGNORED
    losses = _VocabularyLoss.apply(wide, labels_BT.clamp(min=0), tp) * kept_BT.to(wide.dtype)
    return split(losses, tp)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, tp: dist.ProcessGroup) -> Tensor:
        most = logits.max(-1).values
        if tp.size() > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX, group=tp)
        shifted = logits - most[..., None]
        at, here = _here(labels, logits.shape[-1], tp)
        target = shifted.gather(-1, at[..., None])[..., 0] * here.to(logits.dtype)
        exp = shifted.exp()
        sums = torch.stack([exp.sum(-1), target])
        if tp.size() > 1:
            dist.all_reduce(sums, group=tp)
        ctx.save_for_backward(exp / sums[0][..., None], at, here)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        p, at, here = ctx.saved_tensors
        target = here.to(p.dtype)[..., None].neg()
        return p.scatter_add(-1, at[..., None], target) * gradients[0][..., None], None, None


def _here(ids: Tensor, rows: int, tp: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Where ids stand among this rank's `rows` of the vocabulary, and which of them do (the others point to row 0)."""
    at = ids - tp.rank() * rows
    here = (at >= 0) & (at < rows)
    return at.masked_fill(~here, 0), here
