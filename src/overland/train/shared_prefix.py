"""The logits of grouped dialogues, each group's shared prefix run once.

Shapes: G groups, P prefix tokens, M dialogues of all groups, T tokens after the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from overland.model import Decoder, Packing, Routing
from overland.train.dialogues import Dialogue, Group


@dataclass
class GroupedOutput:
    """What the loss needs: `logits` [N, V] at the N trained positions, their `targets` [N] and `row` [N] in `rows`.

    `router` holds all routing records; `tokens` counts what was computed, padding left out.
    """

    logits: Tensor
    targets: Tensor
    row: Tensor
    rows: list[Dialogue]
    router: list[list[Routing]]
    tokens: int


def run_groups(model: Decoder, groups: Sequence[Group], device: torch.device, batches: int = 2) -> GroupedOutput:
    """Forward all dialogues of `groups`, with gradient through the prefixes' cache.

    The members' gradients meet in the one cache of their prefix, so the sum is that of the plain form, computed with
    about half the tokens where the tools are as long as the talk. Members go by length into `batches` forwards, so that
    short ones are not padded to the longest; logits are formed where something is learned.
    """
    members = [(number, d) for number, group in enumerate(groups) for d in group.members]
    members.sort(key=lambda member: len(member[1].ids) - groups[member[0]].prefix)
    prefixes = [torch.tensor(group.members[0].ids[: group.prefix], dtype=torch.long) for group in groups]
    lengths = torch.tensor([len(p) for p in prefixes], device=device)
    tokens = int(lengths.sum())
    router: list[list[Routing]] = []
    prompts = model.new_cache(len(groups))
    if tokens:
        ids = pad_sequence(prefixes, batch_first=True).to(device)
        router.append(model(ids, packing=Packing(lengths=lengths), cache=prompts, last_only=True).aux.router)
    logits, targets, row = [], [], []
    size = -(-len(members) // batches)
    for first in range(0, len(members), size):
        part = members[first : first + size]
        rests = [torch.tensor(d.ids[groups[g].prefix :], dtype=torch.long) for g, d in part]
        learned = [torch.tensor(d.trained[groups[g].prefix + 1 :], dtype=torch.bool) for g, d in part]
        ids = pad_sequence(rests, batch_first=True).to(device)
        where = pad_sequence(learned, batch_first=True).to(device)
        lengths = torch.tensor([len(rest) - 1 for rest in rests], device=device)
        tokens += int(lengths.sum())
        cache = prompts.select([g for g, _ in part])
        out = model(ids[:, :-1], packing=Packing(lengths=lengths), cache=cache, where=where)
        router.append(out.aux.router)
        logits.append(out.logits)
        targets.append(ids[:, 1:][where])
        row.append(first + where.nonzero()[:, 0])
    rows = [d for _, d in members]
    return GroupedOutput(torch.cat(logits), torch.cat(targets), torch.cat(row), rows, router, tokens)
