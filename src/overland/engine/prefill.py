"""Running prompts: what several begin with once, groups of similar length together, or all in pieces.

Whole prompts are the quickest way through a batch that starts together (a group of rollouts). In pieces of at most
`chunk` tokens a step, a long prompt never holds up those who decode: half of a step's tokens go to the oldest prompt,
so that it is never starved, the other half to the shortest, so that they start soon.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from overland.engine.images import PictureRows
from overland.engine.parting import common_length, parting_points
from overland.engine.pool import PagePool
from overland.engine.request import Generation
from overland.engine.routing import cacheable, experts_of, record, wanted
from overland.model import Cache, Decoder, Packing

SHORTEST_PREFIX = 32  # tokens; a shorter shared beginning is cheaper to run again than to look after
PREFILL_TOKENS = 8192  # padded tokens of one call
RECENT = 16  # prompts that later ones are compared with

Done = tuple[list[Generation], list[int], Tensor, Cache]
"""Requests whose prompts have been run, the lane of each, and by lane the logits after the prompt [L, V] and the cache.
Requests with the same prompt share a lane."""


@dataclass(eq=False)
class Part:
    """A prompt that is being run in pieces: `cache` holds its first `at` ids."""

    ids: list[int]
    requests: list[Generation]
    loads: int
    at: int = 0
    held: int = 0
    cache: Cache | None = None
    marks: set[int] = field(default_factory=set)  # where others part from it: a piece ends there, with a checkpoint
    leader: Part | None = None  # runs what both begin with ...
    shared: int = 0  # ... this many tokens
    routed_from: int | None = None  # of its requests


class Prefill:
    """Runs prompts of `model`, with and into the prefixes of `pool`. Counts into `counts`."""

    def __init__(self, model: Decoder, pool: PagePool, counts: Counter[str], pictures: PictureRows) -> None:
        self.model = model
        self.pictures = pictures
        self.pool = pool
        self.counts = counts
        self.parts: list[Part] = []
        self._recent: deque[tuple[str, list[int]]] = deque(maxlen=RECENT)
        self._loads = 0

    def forget(self) -> None:
        """The weights have changed: what has been run so far is of no use to later prompts."""
        self._recent.clear()
        self.pictures.forget()
        self._loads += 1

    # ---- whole prompts ----

    def whole(self, new: list[Generation]) -> list[list[Generation]]:
        """Runs what several prompts begin with; returns groups of similar remaining length, for `run`."""
        self._run_shared(new)
        self._remember(new)
        return self._by_length(new)

    def run(self, group: list[Generation]) -> Done:
        """Run what is left of each distinct prompt in one ragged batch."""
        distinct: dict[tuple[str, tuple[int, ...], int | None], int] = {}
        keys = [(g.salt, tuple(g.prompt_ids), g.routed_from) for g in group]
        lanes = [distinct.setdefault(key, len(distinct)) for key in keys]
        caches, rests = [], []
        for salt, prompt, routed_from in distinct:
            held, cache = self.pool.take(cacheable(prompt, routed_from), salt)
            caches.append(self.model.new_cache(1) if cache is None else cache)
            rests.append(list(prompt[held:]))
        batch = Cache.cat(caches)
        logits, experts = self._forward(rests, batch, wanted(group))
        for g, i in zip(group, lanes, strict=True):
            g.cached_tokens = len(g.prompt_ids) - len(rests[i])
            if experts is not None:
                record(g, experts[i], g.cached_tokens)
            self.counts["cached_tokens"] += g.cached_tokens
        return group, lanes, logits, batch

    def _run_shared(self, new: list[Generation]) -> None:
        """Run once, and keep, what several prompts begin with."""
        for salt, prefix in self._shared(new):
            held, cache = self.pool.take([*prefix, -1], salt)
            if held < len(prefix):
                row = self.model.new_cache(1) if cache is None else cache
                ids, images = self.pictures.feed(torch.tensor([prefix[held:]]))
                self.model(ids, images=images, cache=row, last_only=True)
                self.counts["prompt_tokens"] += len(prefix) - held
                self.pool.put(prefix, row, 0, salt)

    def _shared(self, new: list[Generation]) -> list[tuple[str, list[int]]]:
        """What the new prompts share with each other and with recent ones, shorter beginnings first.

        Equal prompts run as one anyway, and a turn that goes on from its own checkpoint needs no shorter beginning.
        """
        out: list[tuple[str, list[int]]] = []
        new = [g for g in new if g.routed_from is None]  # what is recorded has to be run
        for salt in dict.fromkeys(g.salt for g in new):
            own = list(dict.fromkeys(tuple(g.prompt_ids) for g in new if g.salt == salt))
            prompts = [*own, *(tuple(ids) for other, ids in self._recent if other == salt)]
            shared: set[tuple[int, ...]] = set()
            for ids, n in zip(own, parting_points(prompts, SHORTEST_PREFIX), strict=False):
                n = min(n, len(ids) - 1)
                if n > self.pool.longest(ids, salt):
                    shared.add(ids[:n])
            out += [(salt, list(prefix)) for prefix in sorted(shared, key=len)]
        return out

    def _remember(self, new: list[Generation]) -> None:
        seen = {(salt, tuple(ids)) for salt, ids in self._recent}
        for g in new:
            if (g.salt, tuple(g.prompt_ids)) not in seen and not any(
                salt == g.salt and common_length(ids, g.prompt_ids) >= SHORTEST_PREFIX for salt, ids in self._recent
            ):
                self._recent.append((g.salt, g.prompt_ids))

    def _by_length(self, new: list[Generation]) -> list[list[Generation]]:
        """Groups of similar remaining length, so that little of a prefill is padding."""
        remaining = {id(g): len(g.prompt_ids) - self.pool.longest(g.prompt_ids, g.salt) for g in new}
        groups: list[list[Generation]] = []
        for g in sorted(new, key=lambda g: remaining[id(g)]):
            shortest = remaining[id(groups[-1][0])] if groups else 0
            padded = (len(groups[-1]) + 1) * remaining[id(g)] if groups else 0
            if groups and remaining[id(g)] <= 2 * shortest + 16 and padded <= PREFILL_TOKENS:
                groups[-1].append(g)
            else:
                groups.append([g])
        return groups

    def _forward(self, pieces: list[list[int]], batch: Cache, routed: bool) -> tuple[Tensor, list[Tensor] | None]:
        """One ragged call; logits [B, V] after each piece, and where `routed` each piece's experts."""
        lengths = torch.tensor([len(piece) for piece in pieces])
        padded = torch.zeros(len(pieces), int(lengths.max()), dtype=torch.long)
        for i, piece in enumerate(pieces):
            padded[i, : len(piece)] = torch.tensor(piece)
        self.counts["prompt_tokens"] += int(lengths.sum())
        ids, images = self.pictures.feed(padded)
        packing = Packing(lengths=lengths)
        out = self.model(ids, images=images, packing=packing, cache=batch, last_only=True)
        if not routed:
            return out.logits[:, 0], None
        experts_BTMk = experts_of(out.aux).unflatten(0, padded.shape)
        return out.logits[:, 0], [rows[: len(piece)] for rows, piece in zip(experts_BTMk, pieces, strict=True)]

    # ---- in pieces ----

    def begin(self, new: list[Generation], resumed: list[Generation]) -> None:
        """Queue prompts (and what preempted requests had said) to be run in pieces."""
        shared = self._shared(new)
        for g in [*new, *resumed]:
            ids = [*g.prompt_ids, *g.ids[:-1]]
            peers = [part for part in self.parts if part.requests[0].salt == g.salt and part.loads == self._loads]
            same = next((part for part in peers if part.ids == ids and part.routed_from == g.routed_from), None)
            if same is not None:
                same.requests.append(g)
                continue
            part = Part(ids, [g], self._loads, routed_from=g.routed_from)
            part.marks = {len(prefix) for salt, prefix in shared if salt == g.salt and ids[: len(prefix)] == prefix}
            for other in peers if g.routed_from is None else ():
                n = min(common_length(other.ids, ids), len(ids) - 1)
                if n >= SHORTEST_PREFIX and n > max(part.shared, other.at):
                    part.leader, part.shared = other, n
            if part.leader is not None:
                part.leader.marks.add(part.shared)
            self.parts.append(part)
        self._remember(new)

    def advance(self, tokens: int) -> list[Done]:
        """Run up to `tokens` tokens of what is queued; returns what is complete."""
        self.drop_done()
        chosen = self._choose(tokens)
        if not chosen:
            return []
        for part, _ in chosen:
            if part.cache is None:
                part.cache = self.model.new_cache(1)
        batch = Cache.cat([part.cache for part, _ in chosen if part.cache is not None])
        pieces = [part.ids[part.at : end] for part, end in chosen]
        logits, experts = self._forward(pieces, batch, any(wanted(part.requests) for part, _ in chosen))
        finished: list[Done] = []
        for i, (part, end) in enumerate(chosen):
            if experts is not None:
                for g in part.requests:
                    record(g, experts[i], part.at)
            part.at, part.cache = end, batch.select([i])
            whole_page = end % self.pool.page_size == 0 and end < len(part.ids)
            if part.loads == self._loads and (end in part.marks or whole_page):
                self.pool.put(part.ids[:end], part.cache, 0, part.requests[0].salt)
            if end == len(part.ids):
                for g in part.requests:
                    if not g.ids:  # not one that was preempted
                        g.cached_tokens = part.held
                        self.counts["cached_tokens"] += part.held
                finished.append((part.requests, [0] * len(part.requests), logits[i : i + 1], part.cache))
                self.parts.remove(part)
        return finished

    def drop_done(self) -> None:
        """Forget prompts that nobody waits for any more."""
        for part in self.parts:
            part.requests = [g for g in part.requests if not g.done]
        self.parts = [part for part in self.parts if part.requests]

    def _choose(self, tokens: int) -> list[tuple[Part, int]]:
        """(part, where its piece ends): up to half for the oldest, the rest for those with the least left."""
        ready = []
        for part in self.parts:
            if part.leader is not None and (part.leader not in self.parts or part.leader.at >= part.shared):
                part.leader = None
            if part.leader is not None:
                continue
            if part.cache is None:
                known = cacheable(part.ids, part.routed_from)
                part.held, part.cache = self.pool.take(known, part.requests[0].salt)
                part.at, part.loads = part.held, self._loads
            ready.append(part)
        chosen: list[tuple[Part, int]] = []
        left = tokens
        queue = sorted(ready, key=lambda p: (min(g.priority for g in p.requests), len(p.ids) - p.at))
        if ready and len(ready) > 1:
            left -= self._piece(ready[0], max(1, tokens // 2), chosen)
        for part in queue:
            if left > 0 and all(part is not one for one, _ in chosen):
                left -= self._piece(part, left, chosen)
        return chosen

    def _piece(self, part: Part, most: int, chosen: list[tuple[Part, int]]) -> int:
        """Chooses a piece that ends where a checkpoint is wanted, or at a page's end where it has to end anyway."""
        end = min(len(part.ids), part.at + most)
        wanted = [mark for mark in part.marks if part.at < mark <= end]
        page = self.pool.page_size
        if wanted:
            end = min(wanted)
        elif end < len(part.ids) and end // page * page > part.at:
            end = end // page * page
        chosen.append((part, end))
        return end - part.at
