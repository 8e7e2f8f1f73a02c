"""Token-in, token-out generation for many requests at once: continuous batching over one hybrid cache.

`step()` admits what waits (prompts are run once, shared prefixes reused), then decodes one token for every running
row. Nothing here knows of text, templates, HTTP or rewards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from overland.engine.prefixes import PrefixStore, common_length, parting_points
from overland.engine.request import Budget, Generation, Sampling
from overland.engine.sampler import sample
from overland.errors import UsageError
from overland.model import Cache, Decoder, Packing, load_model

SHORTEST_PREFIX = 32  # tokens; a shorter shared beginning is cheaper to run again than to look after
PREFILL_TOKENS = 8192  # padded tokens of one prefill call


@dataclass(frozen=True)
class Emitted:
    """One token of one request, as `step()` reports it."""

    generation: Generation
    token: int
    logprob: float
    forced: bool


class Engine:
    """Generates with `model` for up to `max_batch` requests at a time.

    `prefix_tokens` bounds the stored prefixes. `context_length` defaults to the model's. Not thread-safe: one thread
    calls `step`; `submit` and `cancel` may come from another one between steps (AsyncEngine does that).
    """

    def __init__(
        self,
        model: Decoder,
        *,
        max_batch: int = 128,
        prefix_tokens: int = 100_000,
        context_length: int | None = None,
        version: int = 0,
    ) -> None:
        self.model = model
        self.max_batch = max_batch
        self.context_length = context_length or model.config.max_position_embeddings
        self.vocab_size = model.config.vocab_size
        self.version = version
        self._prefixes = PrefixStore(prefix_tokens)
        self._recent: deque[tuple[str, list[int]]] = deque(maxlen=16)
        self._waiting: deque[Generation] = deque()
        self._rows: list[Generation] = []
        self._cache: Cache | None = None
        self._loads = 0  # how often the weights have changed
        self._counts = {"prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0, "requests": 0, "steps": 0}

    # ---- the requests ----

    def submit(
        self, ids: Sequence[int], sampling: Sampling, budget: Budget | None = None, salt: str = ""
    ) -> Generation:
        """Queue a request; its Generation fills while `step` runs. Raises UsageError for ids that cannot be run."""
        if not ids:
            raise UsageError("the prompt is empty; an engine needs at least one token")
        if len(ids) >= self.context_length:
            raise UsageError(
                f"the prompt has {len(ids)} tokens; the context holds {self.context_length}, answer included"
            )
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise UsageError(f"the prompt holds ids outside 0..{self.vocab_size - 1}")
        generation = Generation(list(ids), sampling, budget, salt, version=self.version)
        self._waiting.append(generation)
        self._counts["requests"] += 1
        return generation

    def cancel(self, generation: Generation) -> None:
        """Stop a request; its row is free at the next step."""
        if not generation.done:
            generation.finish_reason = "cancelled"

    def cancel_all(self) -> None:
        """Stop every request that runs or waits."""
        for generation in [*self._rows, *self._waiting]:
            self.cancel(generation)
        self._waiting.clear()

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting) or any(not row.done for row in self._rows)

    def run(self, generations: Sequence[Generation]) -> None:
        """Step until all of these are done."""
        while any(not g.done for g in generations):
            self.step()

    def step(self) -> list[Emitted]:
        """Admit waiting requests and decode one token for every running row; returns what was emitted."""
        self._counts["steps"] += 1
        with torch.inference_mode():
            emitted = self._decode()
            return emitted + self._admit()

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probabilities of ids[1:], each given the ids before it."""
        with torch.inference_mode():
            row = torch.tensor([list(ids)])
            logprobs = self.model(row).logits.float().log_softmax(-1)
            return logprobs[0, :-1].gather(1, row[0, 1:, None])[:, 0].tolist()

    def load_weights(self, source: Decoder | str | Path, version: int) -> None:
        """Take another policy's weights; stored prefixes of the old one are dropped. Running requests go on with them.

        What a running request has computed so far is the old policy's, so its end is not stored for others either.
        `source` is a model of the same config (its tensors are copied; the engine's own model is accepted and only
        changes the version) or a model folder.
        """
        other = source if isinstance(source, Decoder) else load_model(source)
        if other is not self.model:
            if other.config != self.model.config:
                raise UsageError("load_weights: the new weights belong to a model of another config")
            self.model.load_state_dict(other.state_dict())
        self.version = version
        self._loads += 1
        self._prefixes.clear()
        self._recent.clear()

    def stats(self) -> dict[str, float]:
        """Counters since the start, and what runs and waits now."""
        running = sum(not row.done for row in self._rows)
        now = {"running": running, "waiting": len(self._waiting), "prefix_tokens": self._prefixes.tokens}
        return {**self._counts, **now}

    # ---- decoding ----

    def _decode(self) -> list[Emitted]:
        """One token for every running row. Finished rows stay until enough of them make a copy worth it."""
        live = [i for i, row in enumerate(self._rows) if not row.done]  # asked once: rows may be cancelled meanwhile
        if not live:
            self._rows, self._cache = [], None
            return []
        if len(live) <= 0.75 * len(self._rows):
            self._compact(live)
        assert self._cache is not None
        last = torch.tensor([[row.ids[-1]] for row in self._rows])
        logits = self.model(last, cache=self._cache).logits[:, 0]
        return self._accept(logits, self._rows, self._cache)

    def _compact(self, keep: list[int]) -> None:
        assert self._cache is not None
        self._cache = self._cache.select(keep)
        self._rows = [self._rows[i] for i in keep]

    def _accept(self, logits: Tensor, rows: list[Generation], cache: Cache) -> list[Emitted]:
        running = [i for i, row in enumerate(rows) if not row.done]
        if not running:
            return []
        live = [rows[i] for i in running]
        emitted = []
        for i, row, (token, logprob, forced) in zip(running, live, sample(logits[running], live), strict=True):
            if row.done:  # cancelled while this step ran
                continue
            row.accept(token, logprob, forced, self.context_length)
            self._counts["generated_tokens"] += 1
            emitted.append(Emitted(row, token, logprob, forced))
            if row.finish_reason == "stop" and row.loads == self._loads:
                # a conversation goes on from here; the last token is not in the cache yet
                self._prefixes.put(row.prompt_ids + row.ids[:-1], cache.select([i]), row.salt)
        return emitted

    # ---- prompts ----

    def _admit(self) -> list[Emitted]:
        """Run the prompts of waiting requests and add them to the batch, with their first token."""
        new: list[Generation] = []
        room = self.max_batch - sum(not row.done for row in self._rows)
        while self._waiting and len(new) < room:
            generation = self._waiting.popleft()
            if not generation.done:
                generation.version, generation.loads = self.version, self._loads
                new.append(generation)
        if not new:
            return []
        self._run_shared_prefixes(new)
        emitted: list[Emitted] = []
        for group in self._by_length(new):
            emitted += self._prefill(group)
        return emitted

    def _run_shared_prefixes(self, new: list[Generation]) -> None:
        """Run once, and keep, what several prompts begin with."""
        known = [*self._recent, *((g.salt, g.prompt_ids) for g in new)]
        for salt in dict.fromkeys(g.salt for g in new):
            prompts = [ids for other, ids in known if other == salt]
            own = {id(g.prompt_ids) for g in new}
            shared: set[tuple[int, ...]] = set()
            for ids, n in zip(prompts, parting_points(prompts, SHORTEST_PREFIX), strict=True):
                if n and id(ids) in own:
                    shared.add(tuple(ids[: min(n, len(ids) - 1)]))
            for prefix in sorted(shared, key=len):
                held, cache = self._prefixes.longest([*prefix, -1], salt)
                if held < len(prefix):
                    row = self.model.new_cache(1) if cache is None else cache.clone()
                    self.model(torch.tensor([prefix[held:]]), cache=row, last_only=True)
                    self._counts["prompt_tokens"] += len(prefix) - held
                    self._prefixes.put(prefix, row, salt)
        seen = {(salt, tuple(ids)) for salt, ids in self._recent}
        for g in new:
            if (g.salt, tuple(g.prompt_ids)) not in seen and not any(
                salt == g.salt and common_length(ids, g.prompt_ids) >= SHORTEST_PREFIX for salt, ids in self._recent
            ):
                self._recent.append((g.salt, g.prompt_ids))

    def _by_length(self, new: list[Generation]) -> list[list[Generation]]:
        """Groups of similar remaining length, so that little of a prefill is padding."""
        remaining = {}
        for g in new:
            held, _ = self._prefixes.longest(g.prompt_ids, g.salt)
            remaining[id(g)] = len(g.prompt_ids) - held
        groups: list[list[Generation]] = []
        for g in sorted(new, key=lambda g: remaining[id(g)]):
            shortest = remaining[id(groups[-1][0])] if groups else 0
            padded = (len(groups[-1]) + 1) * remaining[id(g)] if groups else 0
            if groups and remaining[id(g)] <= 2 * shortest + 16 and padded <= PREFILL_TOKENS:
                groups[-1].append(g)
            else:
                groups.append([g])
        return groups

    def _prefill(self, group: list[Generation]) -> list[Emitted]:
        """Run what is left of each distinct prompt in one ragged batch, then fork it for the requests that share it."""
        distinct: dict[tuple[str, tuple[int, ...]], int] = {}
        row_of = [distinct.setdefault((g.salt, tuple(g.prompt_ids)), len(distinct)) for g in group]
        caches, rests = [], []
        for salt, prompt in distinct:
            held, cache = self._prefixes.longest(prompt, salt)
            caches.append(self.model.new_cache(1) if cache is None else cache)
            rests.append(list(prompt[held:]))
        batch = Cache.cat(caches)
        lengths = torch.tensor([len(rest) for rest in rests])
        padded = torch.zeros(len(rests), int(lengths.max()), dtype=torch.long)
        for i, rest in enumerate(rests):
            padded[i, : len(rest)] = torch.tensor(rest)
        logits = self.model(padded, packing=Packing(lengths=lengths), cache=batch, last_only=True).logits[:, 0]
        for g, i in zip(group, row_of, strict=True):
            g.cached_tokens = len(g.prompt_ids) - len(rests[i])
            self._counts["cached_tokens"] += g.cached_tokens
        self._counts["prompt_tokens"] += int(lengths.sum())
        rows = batch.select(row_of)
        emitted = self._accept(logits[row_of], group, rows)
        self._compact_into(group, rows)
        return emitted

    def _compact_into(self, group: list[Generation], rows: Cache) -> None:
        """Add freshly prefilled rows to the running batch, but for those that are done already."""
        keep = [i for i, row in enumerate(group) if not row.done]
        if len(keep) < len(group):
            group, rows = [group[i] for i in keep], rows.select(keep)
        if self._cache is None or not self._rows:
            self._rows, self._cache = list(group), rows
            return
        live = [i for i, row in enumerate(self._rows) if not row.done]
        if len(live) < len(self._rows):
            self._compact(live)
        self._cache = Cache.cat([self._cache, rows]) if self._rows else rows
        self._rows = [*self._rows, *group]
