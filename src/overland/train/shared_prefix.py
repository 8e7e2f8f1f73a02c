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
    """`logits`, `targets`, `weights` [M, T] of what follows the prefixes; `rows` in that order; all routing records.

    `tokens` counts what was computed, padding left out.
    """

    logits: Tensor
    targets: Tensor
    weights: Tensor
    rows: list[Dialogue]
    router: list[list[Routing]]
    tokens: int


def run_groups(model: Decoder, groups: Sequence[Group], device: torch.device) -> GroupedOutput:
    """Forward all dialogues of `groups`, with gradient through the prefixes' cache.

    The members' gradients meet in the one cache of their prefix, so the sum is that of the plain form, computed with
    about half the tokens where the tools are as long as the talk.
    """
    rows = [dialogue for group in groups for dialogue in group.members]
    starts = [group.prefix for group in groups for _ in group.members]
    router: list[list[Routing]] = []
    cache = None
    tokens = 0
    if any(group.prefix for group in groups):
        prefixes = [torch.tensor(group.members[0].ids[: group.prefix], dtype=torch.long) for group in groups]
        lengths = torch.tensor([len(p) for p in prefixes], device=device)
        tokens += int(lengths.sum())
        cache = model.new_cache(len(groups))
        ids = pad_sequence(prefixes, batch_first=True).to(device)
        router.append(model(ids, packing=Packing(lengths=lengths), cache=cache, last_only=True).aux.router)
        cache = cache.select([number for number, group in enumerate(groups) for _ in group.members])
    inputs = [torch.tensor(d.ids[p:-1], dtype=torch.long) for d, p in zip(rows, starts, strict=True)]
    targets = [torch.tensor(d.ids[p + 1 :], dtype=torch.long) for d, p in zip(rows, starts, strict=True)]
    weights = [torch.tensor(d.trained[p + 1 :], dtype=torch.float32) for d, p in zip(rows, starts, strict=True)]
    lengths = torch.tensor([len(row) for row in inputs], device=device)
    tokens += int(lengths.sum())
    out = model(pad_sequence(inputs, batch_first=True).to(device), packing=Packing(lengths=lengths), cache=cache)
    router.append(out.aux.router)
    padded = [pad_sequence(x, batch_first=True).to(device) for x in (targets, weights)]
    return GroupedOutput(out.logits, padded[0], padded[1], rows, router, tokens)
