"""The lightning indexer's choice: which keys each query keeps.

    I(t, s) = sum_j w_j(t) relu( q_j(t).k(s) );   the k best of the keys that t may see, of equal ones the earlier

ReLU makes exact ties common, and torch.topk settles them differently from call to call; the rule makes one answer of
them. The compiled form never holds the scores of all pairs: a few queries at a time pass over the keys, and each keeps
what may still be among its best. A small sample of the keys tells it beforehand about how good that has to be; where
the sample was wrong the query passes a second time, so the answer is exact. With AVX-512 VNNI most keys are seen in
eight bits alone: a bound that holds for every key (native/first_look.h) says which have no chance, the others' scores
are formed in fp32, so that the answer is that of fp32 to the last tie.
Shapes: B batch, T queries, S keys, J indexer heads, I indexer dim, k kept keys.
Source: DeepSeek-V3.2 report §2; reference/architecture.md §5.4.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from overland.kernels.compiled import Compiled

SCORE_ELEMENTS = 1 << 22  # of the reference's dots at a time

_native = Compiled("top_keys", top_keys="pppppp iiiiiii")


@torch.no_grad()
def top_keys(q_BTJI: Tensor, w_BTJ: Tensor, k_BSI: Tensor, begin_BT: Tensor, end_BT: Tensor, topk: int) -> Tensor:
    """The kept keys' places in ascending order, int64 [B, T, min(topk, S)], padded with -1; without gradient.

    Query t may see the keys begin_BT[t] up to and without end_BT[t] (int64, within 0 and S). `k_BSI` is cast to the
    queries' dtype. A key whose score is NaN is never kept.
    """
    k_BSI = k_BSI.to(q_BTJI.dtype)
    if not _native.runs(q_BTJI, w_BTJ, k_BSI):
        return top_keys_reference(q_BTJI, w_BTJ, k_BSI, begin_BT, end_BT, topk)
    (B, T, J, I), S = q_BTJI.shape, k_BSI.shape[1]
    if T and (int(begin_BT.min()) < 0 or int(end_BT.max()) > S):
        raise IndexError(f"keys {int(begin_BT.min())} to {int(end_BT.max())} of {S} are asked for")
    ids_BTk = begin_BT.new_empty(B, T, min(topk, S))
    tensors = (x.contiguous() for x in (q_BTJI, w_BTJ, k_BSI, begin_BT, end_BT))
    _native("top_keys", ids_BTk, *tensors, B, T, J, I, S, ids_BTk.shape[-1], 1)
    return ids_BTk


@torch.no_grad()
def top_keys_reference(
    q_BTJI: Tensor, w_BTJ: Tensor, k_BSI: Tensor, begin_BT: Tensor, end_BT: Tensor, topk: int
) -> Tensor:
    """The formula as it stands, some queries at a time."""
    (B, T, J, _), S = q_BTJI.shape, k_BSI.shape[1]
    at_S, found = torch.arange(S, device=k_BSI.device), []
    for part in slices(T, B * J * S, SCORE_ELEMENTS):
        scores_BTS = index_scores(q_BTJI[:, part], w_BTJ[:, part], k_BSI)
        seen_BTS = (at_S >= begin_BT[:, part, None]) & (at_S < end_BT[:, part, None])
        found.append(selected_ids(select(scores_BTS, seen_BTS, topk), topk))
    return torch.cat(found, dim=1)


def slices(length: int, elements_each: int, most: int) -> list[slice]:
    """0 .. length in pieces of at most `most` elements, each step having `elements_each`; one step at the least."""
    size = max(1, most // max(1, elements_each))
    return [slice(at, min(length, at + size)) for at in range(0, length, size)]


def index_scores(q_BTJI: Tensor, w_BTJ: Tensor, k_BSI: Tensor) -> Tensor:
    """I(t, s) [B, T, S] in the weights' dtype, of all pairs: what may not be seen is masked by the caller."""
    dots_BTJS = torch.einsum("btji,bsi->btjs", q_BTJI, k_BSI.to(q_BTJI.dtype))
    return torch.einsum("btj,btjs->bts", w_BTJ, F.relu(dots_BTJS))


def select(scores_BTS: Tensor, visible_BTS: Tensor, topk: int) -> Tensor:
    """Which keys each query keeps, [B, T, S] bool: its `topk` best visible ones, of equal ones the earlier."""
    if scores_BTS.shape[-1] <= topk:
        return visible_BTS
    scores = scores_BTS.detach().masked_fill(~visible_BTS, float("-inf"))
    least = scores.topk(topk, dim=-1).values[..., -1:]
    better, equal = scores > least, (scores == least) & visible_BTS
    room = topk - better.sum(-1, keepdim=True)
    return better | (equal & (equal.cumsum(-1) <= room))


def selected_ids(selected_BTS: Tensor, topk: int) -> Tensor:
    """The kept keys' places in ascending order, [B, T, k], k = min(topk, S), padded with -1."""
    S = selected_BTS.shape[-1]
    k = min(topk, S)
    slot = (selected_BTS.cumsum(-1) - 1).masked_fill(~selected_BTS, k)  # one slot more takes what is not kept
    place = torch.arange(S, device=slot.device).expand_as(slot)
    return place.new_full((*slot.shape[:-1], k + 1), -1).scatter_(-1, slot, place)[..., :k]


def selected_mask(ids_BTk: Tensor, S: int) -> Tensor:
    """The inverse of `selected_ids`: [B, T, S] bool."""
    slots = torch.zeros(*ids_BTk.shape[:-1], S + 1, dtype=torch.bool, device=ids_BTk.device)
    return slots.scatter_(-1, ids_BTk.masked_fill(ids_BTk < 0, S), True)[..., :S]
