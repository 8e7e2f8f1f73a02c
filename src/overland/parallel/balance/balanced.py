"""K3's balanced expert parallel: every rank computes exactly the same number of tokens, whatever the router chose.

    while a rank u has less than T = total / R:  take a rank o with more than T; move T - load(u) of its tokens to u

u is then full and never touched again. All its foreign tokens are o's own, so it fetches at most E / R experts; o gave
only tokens of its home experts, because a rank that has been filled has exactly T and gives none. While one rank has
less than T another has more, so this ends, after at most R - 1 moves. Static shapes follow: R ranks, T rows each, at
most E / R experts beside the home ones.

Source: Kimi K3 report, balanced expert parallel (dynamic redundant experts).
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland.parallel.balance.shares import Shares, check


def balanced(counts_E: Tensor, ranks: int) -> Shares:
    """The plan for `counts_E` [E] tokens of each expert on `ranks` ranks.

    Loads are total / ranks each; where that does not divide, the first total % ranks ranks have one more. A pure
    function: ranks that know the same counts find the same plan. Raises UsageError where E is no multiple of `ranks`.
    """
    counts = check(counts_E, ranks)
    home = len(counts) // ranks
    floor, more = divmod(sum(counts), ranks)
    target = [floor + (rank < more) for rank in range(ranks)]
    left = [dict(enumerate(counts[rank * home : (rank + 1) * home], rank * home)) for rank in range(ranks)]
    load = [sum(own.values()) for own in left]
    tokens = torch.zeros(ranks, len(counts), dtype=torch.int64)
    while short := [rank for rank in range(ranks) if load[rank] < target[rank]]:
        rank = max(short, key=lambda r: (target[r] - load[r], -r))
        need = target[rank] - load[rank]
        giver = min(
            (o for o in range(ranks) if load[o] > target[o]), key=lambda o: _cost(left[o], load[o] - target[o], need)
        )
        for expert in _fewest(left[giver], need):
            moved = min(need, left[giver][expert])
            left[giver][expert] -= moved
            tokens[rank, expert] += moved
            need -= moved
        given = target[rank] - load[rank]
        load[giver] -= given
        load[rank] = target[rank]
    for rank, own in enumerate(left):
        for expert, count in own.items():
            tokens[rank, expert] += count
    return Shares(tokens)


def _fewest(own: dict[int, int], need: int) -> list[int]:
    """The fewest of these experts with `need` tokens between them: one that just suffices, else the largest first."""
    alone = [expert for expert, count in own.items() if count >= need]
    if alone:
        return [min(alone, key=lambda expert: (own[expert], expert))]
    chosen, rest = [], need
    for expert in sorted(own, key=lambda expert: (-own[expert], expert)):
        if rest <= 0:
            break
        chosen.append(expert)
        rest -= own[expert]
    return chosen


def _cost(own: dict[int, int], surplus: int, need: int) -> tuple[bool, int, int]:
    """How bad a giver is: short itself afterwards, then by experts to fetch, then by how little it has to spare."""
    return surplus < need, len(_fewest(own, need)), -surplus
