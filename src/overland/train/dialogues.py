"""Dialogues as ids and masks, grouped so that a shared beginning is computed once.

Every dialogue of a taskset starts with the same tools and effort message, which is often half of its tokens. The loop
runs that prefix once per group and hands its cache to the members: the gradient is the same sum, with about half the
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from overland.errors import OverlandError


@dataclass(frozen=True)
class Dialogue:
    """One encoded conversation: `ids`, and for each id whether the assistant produced it and it is learned.

    `label` (a domain) only groups metrics.
    """

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    label: str = ""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.trained):
            raise OverlandError(f"a dialogue has {len(self.ids)} ids and {len(self.trained)} mask entries")


@dataclass(frozen=True)
class Group:
    """Dialogues whose first `prefix` ids are equal; none of those, nor the id after them, is learned."""

    prefix: int
    members: tuple[Dialogue, ...]


def as_dialogues(dataset: Iterable[object]) -> list[Dialogue]:
    """Accept Dialogue objects, (ids, trained) or (ids, trained, label) tuples, and objects with those attributes.

    Raises OverlandError where a dialogue teaches nothing.
    """
    found: list[Dialogue] = []
    for number, item in enumerate(dataset):
        if isinstance(item, Dialogue):
            dialogue = item
        elif isinstance(item, tuple):
            dialogue = Dialogue(tuple(item[0]), tuple(bool(t) for t in item[1]), *item[2:3])
        else:
            ids, trained = item.ids, item.trained  # type: ignore[attr-defined]
            dialogue = Dialogue(tuple(ids), tuple(bool(t) for t in trained), getattr(item, "label", ""))
        if not any(dialogue.trained[1:]):
            raise OverlandError(f"dialogue {number}: no token of it is the assistant's; there is nothing to learn")
        found.append(dialogue)
    if not found:
        raise OverlandError("the dataset has no dialogue; make demonstrations first")
    return found


def group_by_prefix(dialogues: Sequence[Dialogue], members: int, least: int = 16) -> list[Group]:
    """Split into groups with a long common beginning, as deep as most groups keep `members` dialogues.

    A group's prefix is shorter than `least`: 0, not worth a forward of its own.
    """
    ordered = sorted(dialogues, key=lambda d: d.ids)
    return [Group(p if p >= least else 0, tuple(ordered[a:b])) for a, b, p in _split(ordered, 0, len(ordered), members)]


def _split(ordered: Sequence[Dialogue], start: int, end: int, members: int) -> list[tuple[int, int, int]]:
    """(start, end, prefix) of the groups of a sorted run. Neighbours' common prefixes bound everybody's."""
    room = min(_untrained(d) for d in ordered[start:end])
    if end - start == 1:
        return [(start, end, room)]
    shared = [_common(ordered[i].ids, ordered[i + 1].ids) for i in range(start, end - 1)]
    least = min(shared)
    here = [(start, end, min(least, room))]
    if least >= room:
        return here
    cuts = [start, *(start + 1 + i for i, s in enumerate(shared) if s == least), end]
    parts = list(pairwise(cuts))
    served = sum(b - a for a, b in parts if b - a >= members)
    if served < 0.8 * (end - start):
        return here
    return [group for a, b in parts for group in _split(ordered, a, b, members)]


def _untrained(dialogue: Dialogue) -> int:
    """The longest prefix that may be shared: it and the id after it are not learned, and something is left."""
    return max(0, dialogue.trained.index(True) - 1)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:  # bisect: equal up to `low`
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class DialogueOrder:
    """Which groups a step holds: a pure function of seed and step, so that there is no cursor to save.

    Every epoch deals out each dialogue once, in portions of `members` from one group, in a new order.
    """

    def __init__(self, dialogues: Sequence[Dialogue], batch: int, members: int, seed: int) -> None:
        self.batch, self.members, self.seed = batch, min(members, batch), seed
        self.groups = group_by_prefix(dialogues, self.members)
        self._epochs: dict[int, list[list[Group]]] = {}
        self._starts = [0]

    def step(self, step: int) -> list[Group]:
        """The groups of 0-based `step`: about `batch` dialogues in all."""
        epoch = 0
        while True:
            if len(self._starts) <= epoch + 1:
                self._starts.append(self._starts[epoch] + len(self._deal(epoch)))
            if step < self._starts[epoch + 1]:
                return self._deal(epoch)[step - self._starts[epoch]]
            epoch += 1

    def _deal(self, epoch: int) -> list[list[Group]]:
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            portions: list[Group] = []
            for group in self.groups:
                order = torch.randperm(len(group.members), generator=generator).tolist()
                for at in range(0, len(order), self.members):
                    chosen = tuple(group.members[i] for i in order[at : at + self.members])
                    portions.append(Group(group.prefix, chosen))
            shuffled = [portions[i] for i in torch.randperm(len(portions), generator=generator).tolist()]
            self._epochs = {epoch: _fill(shuffled, self.batch)}
        return self._epochs[epoch]


def _fill(portions: Sequence[Group], batch: int) -> list[list[Group]]:
    """Consecutive portions until a step has `batch` dialogues; a small last step joins the one before."""
    steps: list[list[Group]] = [[]]
    size = 0
    for portion in portions:
        if size + len(portion.members) > batch and steps[-1]:
            steps.append([])
            size = 0
        steps[-1].append(portion)
        size += len(portion.members)
    if len(steps) > 1 and 2 * size < batch:
        steps[-2] += steps.pop()
    return steps
