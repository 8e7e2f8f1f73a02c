"""Generation from token ids alone: what /v1/completions and the trainers' route share. No template, no channels."""

from __future__ import annotations

import codecs
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from overland.engine import Budget, Generation, Sampling
from overland.serve.choice import Clock, ended_early
from overland.serve.generation import Generator
from overland.serve.stops import StopText


@dataclass
class Piece:
    """One token and the text it released."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    text: str


@dataclass
class RawRun:
    """One generation from ids. Iterate `pieces` once; afterwards `generation` is complete and `finish` says how."""

    owner: Generator
    ids: Sequence[int]
    sampling: Sampling
    budget: Budget | None = None
    salt: str = ""
    stops: tuple[str, ...] = ()
    priority: int = 0
    request_id: str = ""
    routed_from: int | None = None
    generation: Generation | None = None
    finish: str = "stop"
    tail: str = ""  # text that only the end released
    pieces_: list[Piece] = field(default_factory=list)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Every token as it is sampled."""
        owner = self.owner
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stop_text = StopText(self.stops)
        clock = Clock(owner)
        stream = owner.engine.submit(
            self.ids, self.sampling, self.budget, self.salt, priority=self.priority, routed_from=self.routed_from
        )
        self.generation = generation = stream.generation
        key = owner.register(generation, self.request_id)
        cut = ended = False
        try:
            async for one in stream:
                clock.token(generation)
                special = owner.tokenizer.special_name(one.token) is not None
                text = "" if special else decoder.decode(owner.tokenizer.bytes_of([one.token]))
                text, stop = stop_text.feed(text)
                cut = stop is not None
                if cut:
                    owner.engine.cancel(generation)
                piece = Piece(one.token, one.logprob, one.top, text)
                self.pieces_.append(piece)
                yield piece
                if cut:
                    break
            if not cut and generation.finish_reason in ("cancelled", "deadline"):
                raise ended_early(generation.finish_reason)
            self.finish = "stop" if cut else generation.finish_reason or "stop"
            if not cut:
                shown, _ = stop_text.feed(decoder.decode(b"", True))
                self.tail = shown + stop_text.rest()
            owner.metrics.measure(len(self.ids), generation.cached_tokens, len(generation.ids), self.finish)
            clock.end(len(generation.ids))
            ended = True
        finally:
            owner.unregister(key)
            if not generation.done:
                owner.engine.cancel(generation)
            if not ended:
                owner.metrics.cancelled.inc()

    async def run(self) -> RawRun:
        """To its end."""
        async for _ in self.pieces():
            pass
        return self

    @property
    def text(self) -> str:
        """What has been said."""
        return "".join(piece.text for piece in self.pieces_) + self.tail


def seeds(seed: int | None, count: int) -> list[int]:
    """A seed for each of several generations of one request."""
    first = secrets.randbits(31) if seed is None else seed
    return [first + number for number in range(count)]
