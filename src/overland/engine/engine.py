"""Token-in, token-out generation for many requests at once: continuous batching over one hybrid cache.

`step()` decodes one token for every running row, then runs prompts of what waits: whole, or in pieces of
`prefill_chunk` tokens a step. With `pool_bytes` rows and stored prefixes share one budget: prefixes are evicted before
rows, then the latest of the least urgent rows is preempted, and resumes exactly where it was. Nothing here knows of
text, templates, HTTP or rewards.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from overland.engine.batch import Batch
from overland.engine.constraint import Constraint
from overland.engine.images import Picture, PictureRows
from overland.engine.pool import PAGE_TOKENS, PagePool
from overland.engine.prefill import Prefill
from overland.engine.request import Budget, Generation, Sampling
from overland.engine.routing import expert_layers, experts_of, record, wanted
from overland.engine.sampler import sample
from overland.engine.weights import checksum_of
from overland.errors import UsageError
from overland.model import Cache, Decoder, load_model

PauseMode = Literal["abort", "wait", "keep"]


@dataclass(frozen=True)
class Emitted:
    """One token of one request, as `step()` reports it."""

    generation: Generation
    token: int
    logprob: float
    forced: bool
    top: tuple[tuple[int, float], ...] = ()


class Engine:
    """Generates with `model` for up to `max_batch` requests at a time.

    prefix_tokens: the stored prefixes' lengths, summed, at most. context_length: defaults to the model's.
    prefill_chunk: prompt tokens run between two decoding steps; None: whole prompts. page_size: tokens of a page, at
    whose ends prompts run in pieces leave checkpoints. pool_bytes: what rows and prefixes take together, at most; None:
    rows are bounded by `max_batch` alone. swap_bytes: what preempted rows may keep in memory outside the pool, so that
    they go on with the very same numbers; beyond it they are run again.

    Not thread-safe: one thread calls `step`; `submit` and `cancel` may come from another one between steps (AsyncEngine
    does that).
    """

    def __init__(
        self,
        model: Decoder,
        *,
        max_batch: int = 128,
        prefix_tokens: int = 100_000,
        context_length: int | None = None,
        version: int | str = 0,
        prefill_chunk: int | None = None,
        page_size: int = PAGE_TOKENS,
        pool_bytes: int | None = None,
        swap_bytes: int | None = None,
    ) -> None:
        if prefill_chunk is not None and prefill_chunk < 1:
            raise UsageError(f"prefill_chunk = {prefill_chunk}; valid: 1 or more tokens, or None for whole prompts")
        if page_size < 1:
            raise UsageError(f"page_size = {page_size}; valid: 1 or more tokens")
        self.model = model
        self.max_batch = max_batch
        self.context_length = context_length or model.config.max_position_embeddings
        self.vocab_size = model.config.vocab_size
        self.version = version
        self.token_limit: int | None = None  # ids from here on are never sampled: padding of the vocabulary
        self.pool_bytes = pool_bytes
        self.swap_bytes = (pool_bytes or 0) if swap_bytes is None else swap_bytes
        self.prefill_chunk = prefill_chunk
        self.pool = PagePool(model, prefix_tokens, page_size)
        names = (
            "prompt_tokens",
            "cached_tokens",
            "generated_tokens",
            "decoded_lanes",
            "requests",
            "steps",
            "preemptions",
        )
        self._counts: Counter[str] = Counter(dict.fromkeys(names, 0))
        self.pictures = PictureRows(model)
        self._prefill = Prefill(model, self.pool, self._counts, self.pictures)
        self._batch = Batch()
        self._inbox: deque[Generation] = deque()  # the one list that other threads append to
        self._waiting: deque[Generation] = deque()
        self._held: deque[Generation] = deque()  # submitted while paused
        self._parked: dict[int, Cache] = {}  # by id of the request: preempted rows' caches
        self._ended: list[Generation] = []  # at their deadline, hence without a last token
        self._paused: PauseMode | None = None
        self._loads = 0  # how often the weights have changed

    # ---- the requests ----

    def submit(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        budget: Budget | None = None,
        salt: str = "",
        *,
        images: Sequence[Picture] = (),
        constraint: Constraint | None = None,
        priority: int = 0,
        deadline: float | None = None,
        routed_from: int | None = None,
    ) -> Generation:
        """Queue a request; its Generation fills while `step` runs.

        `images` stand, in order, where `ids` have the model's media_token_id, once for each of their places.
        `routed_from` records the experts of every token from that one of the prompt on (all but the last, which is
        never run); what they stand for is then not taken from the cache.
        Raises UsageError for ids and images that cannot be run.
        """
        if not ids:
            raise UsageError("the prompt is empty; an engine needs at least one token")
        if len(ids) >= self.context_length:
            raise UsageError(
                f"the prompt has {len(ids)} tokens; the context holds {self.context_length}, answer included"
            )
        if self.pool_bytes is not None and self.pool.row_bytes(len(ids) + 1) > self.pool_bytes:
            raise UsageError(
                f"the prompt has {len(ids)} tokens; that is more than the cache holds ({self.pool_bytes} bytes)"
            )
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise UsageError(f"the prompt holds ids outside 0..{self.vocab_size - 1}")
        if any(not 0 <= token < self.vocab_size for token, _ in sampling.logit_bias):
            raise UsageError(f"logit_bias names ids outside 0..{self.vocab_size - 1}")
        if routed_from is not None:
            if not expert_layers(self.model):
                raise UsageError("routed_from: this model has no experts to record")
            if not 0 <= routed_from < len(ids):
                raise UsageError(f"routed_from = {routed_from} is no token of the prompt; valid: 0 to {len(ids) - 1}")
        prompt, held = self.pictures.admit(ids, images)
        generation = Generation(
            prompt,
            sampling,
            budget,
            salt,
            version=self.version,
            constraint=constraint,
            priority=priority,
            deadline=deadline,
            held=held,
            routed_from=routed_from,
        )
        (self._inbox if self._paused is None else self._held).append(generation)
        self._counts["requests"] += 1
        return generation

    def fork(self, generation: Generation, seeds: Sequence[int]) -> list[Generation]:
        """Requests that go on from where `generation` is now, each with a seed of its own. Raises UsageError when it
        has ended. Call it between steps."""
        if generation.done:
            raise UsageError("a request that has ended cannot be forked; submit its ids as a prompt")
        twins = [generation.twin(seed) for seed in seeds]
        place = next((i for i, row in enumerate(self._batch.rows) if row is generation), None)
        for twin in twins:
            if place is not None:
                self._parked[id(twin)] = self._batch.copy(place)
            elif id(generation) in self._parked:
                self._parked[id(twin)] = self._parked[id(generation)].clone()
        self._waiting.extendleft(reversed(twins))
        self._counts["requests"] += len(twins)
        return twins

    def cancel(self, generation: Generation) -> None:
        """Stop a request; its row is free at the next step."""
        if not generation.done:
            generation.finish_reason = "cancelled"

    def cancel_all(self) -> None:
        """Stop every request that runs or waits."""
        for generation in [*self._active(), *self._held]:
            self.cancel(generation)

    def _active(self) -> list[Generation]:
        prefilling = [g for part in list(self._prefill.parts) for g in part.requests]
        return [*self._batch.rows, *prefilling, *self._waiting, *self._inbox]

    def pause(self, mode: PauseMode = "abort") -> None:
        """Take no new requests until `resume`; they are held. What was submitted before is cancelled (`abort`), goes on
        to its end while steps run (`wait`: idle when not `busy`), or is frozen where it is (`keep`)."""
        if mode not in ("abort", "wait", "keep"):
            raise UsageError(f"pause mode is {mode!r}; valid: abort, wait, keep")
        if mode == "abort":
            self.cancel_all()
        self._paused = mode

    def resume(self) -> None:
        """Go on with what was frozen and what was held."""
        self._paused = None
        self._inbox.extend(self._held)
        self._held.clear()

    @property
    def paused(self) -> bool:
        """Whether new requests are held."""
        return self._paused is not None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        if self._paused == "keep":
            return False
        return any(not g.done for g in self._active())

    def tidy(self) -> None:
        """Let go of what has ended: a last step does it for those who wait for an idle engine's memory."""
        self._drop_done()
        self._prefill.drop_done()
        self._batch.tidy(at_once=True)
        for g in [g for g in self._held if g.done]:
            self._held.remove(g)

    @property
    def most_tokens(self) -> int:
        """Tokens that one request may have at most, answer included, for the cache's sake."""
        if self.pool_bytes is None or not self.pool.token_bytes:
            return self.context_length
        pages = (self.pool_bytes - self.pool.state_bytes) // (self.pool.page_size * self.pool.token_bytes)
        return max(1, pages * self.pool.page_size)

    def run(self, generations: Sequence[Generation]) -> None:
        """Step until all of these are done."""
        while any(not g.done for g in generations):
            self.step()

    def step(self) -> list[Emitted]:
        """Decode one token for every running row and run prompts of what waits; returns what was emitted."""
        if self._paused == "keep":
            return []
        self._counts["steps"] += 1
        with torch.inference_mode():
            self._end_late()
            emitted = self._decode()
            return emitted + self._admit()

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probabilities of ids[1:], each given the ids before it."""
        with torch.inference_mode():
            row = torch.tensor([list(ids)])
            logprobs = self.model(row).logits.float().log_softmax(-1)
            return logprobs[0, :-1].gather(1, row[0, 1:, None])[:, 0].tolist()

    def load_weights(
        self, source: Decoder | Mapping[str, Tensor] | str | Path, version: int | str, checksum: str | None = None
    ) -> None:
        """Take another policy's weights; stored prefixes of the old one are dropped. Running requests go on with them.

        What a running request has computed so far is the old policy's, so its end is not stored for others either.
        `source` is a model of the same config (its tensors are copied; the engine's own model is accepted and only
        changes the version), a model folder, or tensors by name (those not named stay). `checksum` is what
        `weights.checksum_of` must give for the tensors that come. Raises UsageError before anything is changed.
        """
        if isinstance(source, str | Path):
            source = load_model(source)
        if isinstance(source, Decoder) and source.config != self.model.config:
            raise UsageError("load_weights: the new weights belong to a model of another config")
        tensors = source.state_dict() if isinstance(source, Decoder) else source
        if checksum is not None and (got := checksum_of(tensors)) != checksum:
            raise UsageError(f"load_weights: the tensors' checksum is {got}, not {checksum}: damaged on the way")
        if source is not self.model:
            _copy_into(self.model.state_dict(), tensors)
        self.version = version
        self._loads += 1
        self.pool.clear()
        self._prefill.forget()

    def stats(self) -> dict[str, float]:
        """Counters since the start, and what runs and waits now. Bytes are of caches; `cache_usage` is 0 to 1."""
        prefilling = sum(not g.done for part in self._prefill.parts for g in part.requests)
        rows = self._row_bytes(ahead=0)
        waiting = sum(not g.done for g in [*self._waiting, *self._inbox, *self._held])
        now: dict[str, float] = {
            "running": len(self._batch.live()) + prefilling,
            "waiting": waiting,
            "prefix_tokens": self.pool.tokens,
            "prefix_pages": self.pool.pages,
            "prefix_checkpoints": self.pool.checkpoints,
            "evictions": self.pool.evictions,
            "cache_bytes": rows + self.pool.bytes,
            "swapped_bytes": self._swapped(),
        }
        if self.pool_bytes is not None:
            now["cache_usage"] = (rows + self.pool.bytes) / self.pool_bytes
            now["row_usage"] = rows / self.pool_bytes
        return {**self._counts, **now}

    def take_ended(self) -> list[Generation]:
        """Requests that ended at their deadline since the last call: no token says so."""
        ended, self._ended = self._ended, []
        return ended

    # ---- decoding ----

    def _decode(self) -> list[Emitted]:
        """One token for every running row; rows that have said the same so far are computed once."""
        batch = self._batch
        if not batch.tidy(at_once=self.pool_bytes is not None):
            return []
        self._make_room()
        if not batch.rows:
            return []
        assert batch.cache is not None
        last = torch.tensor(batch.last_tokens())[:, None]
        self._counts["decoded_lanes"] += len(last)
        out = self.model(last, cache=batch.cache)
        if wanted(batch.rows):
            experts_LMk = experts_of(out.aux)
            for row, lane in zip(batch.rows, batch.lanes, strict=True):
                record(row, experts_LMk[lane : lane + 1], len(row.prompt_ids) + len(row.ids) - 1)
        return self._accept(out.logits[:, 0], batch.rows, batch.lanes, batch.cache)

    def _accept(self, logits: Tensor, rows: Sequence[Generation], lanes: Sequence[int], cache: Cache) -> list[Emitted]:
        """Draw the next token of every running row from its lane's logits."""
        running = [(row, lane) for row, lane in zip(rows, lanes, strict=True) if not row.done]
        if not running:
            return []
        if self.token_limit is not None:
            logits[:, self.token_limit :] = float("-inf")
        if self.pictures.media_token_id is not None:
            logits[:, self.pictures.media_token_id] = float("-inf")  # no picture can be said
        emitted = []
        drawn_rows = sample(logits, [row for row, _ in running], [lane for _, lane in running])
        for (row, lane), drawn in zip(running, drawn_rows, strict=True):
            if row.done:  # cancelled while this step ran
                continue
            row.accept(drawn.token, drawn.logprob, drawn.forced, self.context_length)
            row.versions.append(self.version)
            if row.sampling.top_logprobs:
                row.top.append(drawn.top)
            self._counts["generated_tokens"] += 1
            emitted.append(Emitted(row, *drawn))
            if row.finish_reason == "stop" and row.loads == self._loads:
                # a conversation goes on from here; the last token is not in the cache yet
                self.pool.put(row.prompt_ids + row.ids[:-1], cache, lane, row.salt)
        return emitted

    # ---- prompts ----

    def _admit(self) -> list[Emitted]:
        """Let waiting requests in, run their prompts and add them to the batch, with their first token."""
        new, resumed = self._let_in()
        back = [g for g in resumed if id(g) in self._parked]
        if back:
            self._batch.add(back, range(len(back)), Cache.cat([self._parked.pop(id(g)) for g in back]))
        again = [g for g in resumed if g not in back]
        if self.prefill_chunk is None:
            emitted: list[Emitted] = []
            for group in self._prefill.whole(new) if new else []:
                emitted += self._join(*self._prefill.run(group))
            if again:
                self._prefill.begin([], again)
            while self._prefill.parts:
                for done in self._prefill.advance(self.context_length):
                    emitted += self._join(*done)
            return emitted
        self._prefill.begin(new, again)
        emitted = []
        for done in self._prefill.advance(self.prefill_chunk):
            emitted += self._join(*done)
        return emitted

    def _join(self, group: list[Generation], lanes: list[int], logits: Tensor, cache: Cache) -> list[Emitted]:
        """Rows whose prompts are done enter the batch; new ones with their first token."""
        fresh = [i for i, g in enumerate(group) if not g.ids]
        emitted = self._accept(logits, [group[i] for i in fresh], [lanes[i] for i in fresh], cache)
        self._batch.add(group, lanes, cache)
        return emitted

    def _let_in(self) -> tuple[list[Generation], list[Generation]]:
        """(new, preempted before), the most urgent first, as far as there is room."""
        new: list[Generation] = []
        resumed: list[Generation] = []
        self._drop_done()
        if not self._waiting:
            return new, resumed
        prefilling = sum(len(part.requests) for part in self._prefill.parts)
        room = self.max_batch - len(self._batch.live()) - prefilling
        taken = self._row_bytes()
        for generation in sorted(self._waiting, key=lambda g: g.priority):
            if len(new) + len(resumed) >= room:
                if not self._displace(generation):
                    break
                room += 1
                taken = self._row_bytes() + sum(self._needs(g) for g in [*new, *resumed])
            if self.pool_bytes is not None:
                if taken + self._needs(generation) > self.pool_bytes:
                    break
                taken += self._needs(generation)
                self.pool.shrink(self.pool_bytes - taken)
            self._waiting.remove(generation)
            generation.begun = generation.begun or time.perf_counter()
            if generation.ids:
                resumed.append(generation)
            else:
                generation.version, generation.loads = self.version, self._loads
                new.append(generation)
        return new, resumed

    # ---- room ----

    def _needs(self, generation: Generation, ahead: int = 1) -> int:
        """Bytes of a row that so many tokens more are put into."""
        return self.pool.row_bytes(len(generation.prompt_ids) + len(generation.ids) + ahead)

    def _row_bytes(self, ahead: int = 1) -> int:
        prefilling = [g for part in list(self._prefill.parts) for g in part.requests]
        return sum(self._needs(g, ahead) for g in [*self._batch.rows, *prefilling] if not g.done)

    def _swapped(self) -> int:
        return sum(self.pool.row_bytes(int(cache.lengths.max())) for cache in self._parked.values())

    def _make_room(self) -> None:
        """Before rows grow: evict prefixes, then preempt rows, until all fits."""
        if self.pool_bytes is None:
            return
        while (rows := self._row_bytes()) > self.pool_bytes:
            if len(self._batch.rows) == 1:
                self._batch.rows[0].finish_reason = "length"  # alone it fills the whole cache
                self._ended.append(self._batch.rows[0])
                self._batch.keep([])
                return
            self._preempt(max(self._batch.rows, key=lambda g: (g.priority, self._batch.rows.index(g))))
        self.pool.shrink(self.pool_bytes - rows)

    def _displace(self, generation: Generation) -> bool:
        """Preempt a less urgent row for a request; False where there is none."""
        rows = [self._batch.rows[i] for i in self._batch.live()]
        worst = max(rows, key=lambda g: g.priority, default=None)
        if worst is None or worst.priority <= generation.priority:
            return False
        self._preempt(worst)
        return True

    def _preempt(self, row: Generation) -> None:
        cache = self._batch.take(row)
        if self._swapped() + self._needs(row) <= self.swap_bytes:
            self._parked[id(row)] = cache
        self._waiting.appendleft(row)
        self._counts["preemptions"] += 1

    def _drop_done(self) -> None:
        """Forget what was cancelled while it waited."""
        while self._inbox:
            self._waiting.append(self._inbox.popleft())
        for g in [g for g in self._waiting if g.done]:
            self._waiting.remove(g)
            self._parked.pop(id(g), None)

    def _end_late(self) -> None:
        """End what has passed its deadline."""
        now = time.monotonic()
        for g in self._active():
            if g.deadline is not None and not g.done and now > g.deadline:
                g.finish_reason = "deadline"
                self._ended.append(g)


def _copy_into(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if name not in own:
            raise UsageError(f"load_weights: {name!r} is no tensor of this model")
        if own[name].shape != tensor.shape:
            raise UsageError(
                f"load_weights: {name!r} has shape {list(tensor.shape)}, the model's is {list(own[name].shape)}"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
