"""What is done elsewhere, as the same kind of plan: experts at home, a capacity with dropping, replicas of hot ones."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from overland.parallel.balance.shares import Shares, at_home, check


def plain(counts_E: Tensor, ranks: int) -> Shares:
    """Every choice goes to its expert's home."""
    check(counts_E, ranks)
    return Shares(counts_E * at_home(len(counts_E), ranks))


def capacity(counts_E: Tensor, ranks: int, factor: float = 1.0) -> Shares:
    """No expert takes more than `factor` times the mean; what is beyond is dropped (Switch Transformer, §2.2)."""
    check(counts_E, ranks)
    limit = ceil(factor * int(counts_E.sum()) / len(counts_E))
    kept = counts_E.clamp(max=limit)
    return Shares(kept * at_home(len(counts_E), ranks), int((counts_E - kept).sum()))


def replicated(expected_E: Tensor, counts_E: Tensor, ranks: int, spare: int) -> Shares:
    """Hot experts in several copies, `spare` slots a rank beside the E / R of today (EPLB's greedy way).

    The placement is made for `expected_E`, the load of some batches ago, because weights move slowly; then the tokens
    of `counts_E` are split evenly over an expert's copies. The next copy goes to the expert with the most tokens a
    copy, copies are packed heaviest first into the emptiest rank that has a slot and not the expert yet.
    Source: deepseek-ai/EPLB.
    """
    expected, counts = check(expected_E, ranks), check(counts_E, ranks)
    slots = len(counts) // ranks + spare
    copies = [1] * len(counts)
    for _ in range(ranks * spare):
        free = [expert for expert in range(len(counts)) if copies[expert] < ranks]
        if not free:
            break
        copies[max(free, key=lambda expert: (expected[expert] / copies[expert], -expert))] += 1
    weights = sorted(
        ((expected[expert] / copies[expert], expert) for expert in range(len(counts)) for _ in range(copies[expert])),
        key=lambda copy: (-copy[0], copy[1]),
    )
    holds: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for weight, expert in weights:
        room = [rank for rank in range(ranks) if len(holds[rank]) < slots and expert not in holds[rank]]
        rank = min(room or [r for r in range(ranks) if len(holds[r]) < slots], key=lambda r: (load[r], r))
        holds[rank].append(expert)
        load[rank] += weight
    tokens = torch.zeros(ranks, len(counts), dtype=torch.int64)
    for expert, count in enumerate(counts):
        where = [rank for rank in range(ranks) for held in holds[rank] if held == expert]
        for at, rank in enumerate(where):
            tokens[rank, expert] += count // len(where) + (at < count % len(where))
    return Shares(tokens)
