"""A served model whose words a test chooses: the real AsyncEngine, template, tokenizer and HTTP server around a script.

`ScriptedEngine` stands for the model alone. It spells its words one byte a token, which is never how the tokenizer
would encode them, so that a prompt that was re-encoded differs from one that kept the sampled ids.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from overland.chat import XTML, Message, Tokenizer, ToolCall
from overland.engine import AsyncEngine, Budget, Emitted, Generation, Sampling
from overland.serve import ServeSection, background, create_app

MODEL = "scripted"
KEY_VARIABLE = "OVERLAND_TEST_KEY"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
CALL_TURN = Message(
    "assistant",
    "Let me look.",
    "They want the weather.",
    (ToolCall("", "weather", '{"city": "Paris", "days": 3}'), ToolCall("", "weather", '{"city": "Zürich"}')),
)
ANSWER_TURN = Message("assistant", "Sunny in both, 18°C.", "I have the results.")


class ScriptedEngine:
    """The face of Engine. Every request says the next line of `script`, or goes on for ever once that is empty."""

    def __init__(self, tokenizer: Tokenizer, context_length: int = 4096) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.most_tokens = context_length
        self.vocab_size = tokenizer.vocab_size
        self.script: deque[list[int]] = deque()
        self.seen: list[Generation] = []
        self.constrained: list[bool] = []
        self._ended: list[Generation] = []
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self.broken = False
        self.pause_after: int | None = None  # tokens of a request, until `go` is set
        self.go = threading.Event()
        self._lines: list[tuple[Generation, Iterator[int]]] = []
        self._prefixes: set[tuple[int, ...]] = set()
        self._filler = tokenizer.encode("a")[0]

    def submit(
        self, ids: Sequence[int], sampling: Sampling, budget: Budget | None = None, salt: str = "", **options: Any
    ) -> Generation:
        self.constrained.append(options.pop("constraint", None) is not None)  # the script says what it says
        options.pop("images", None)
        generation = Generation(list(ids), sampling, budget, salt, **options)
        known = [len(prefix) for prefix in self._prefixes if tuple(ids[: len(prefix)]) == prefix]
        generation.cached_tokens = max(known, default=0)
        self.seen.append(generation)
        self._lines.append((generation, iter(self.script.popleft() if self.script else self._for_ever())))
        return generation

    def cancel(self, generation: Generation) -> None:
        if not generation.done:
            generation.finish_reason = "cancelled"
            self.cancelled.set()

    @property
    def busy(self) -> bool:
        return any(not generation.done for generation, _ in self._lines)

    def step(self) -> list[Emitted]:
        if self.broken:
            raise MemoryError("/secret/path")
        for generation, _ in self._lines:
            if generation.deadline is not None and not generation.done and time.monotonic() > generation.deadline:
                generation.finish_reason = "deadline"
                self._ended.append(generation)
        live = [generation for generation, _ in self._lines if not generation.done]
        if any(len(one.ids) == self.pause_after for one in live) and not self.go.wait(0.01):
            return []
        out = []
        for generation, line in self._lines:
            if generation.done:
                continue
            forced = generation.next_forced()
            token = next(line) if forced is None else forced
            generation.accept(token, 0.0 if forced is not None else -0.5, forced is not None, self.context_length)
            out.append(Emitted(generation, token, generation.logprobs[-1], forced is not None))
            if generation.finish_reason == "stop":
                self._prefixes.add(tuple(generation.prompt_ids + generation.ids[:-1]))
        self._lines = [line for line in self._lines if not line[0].done]
        self.started.set()
        return out

    def take_ended(self) -> list[Generation]:
        ended, self._ended = self._ended, []
        return ended

    def tidy(self) -> None:
        pass

    def stats(self) -> dict[str, float]:
        return {"running": sum(not generation.done for generation, _ in self._lines), "waiting": 0}

    def _for_ever(self) -> Iterator[int]:
        yield from XTML().think_close_ids(self.tokenizer)
        while True:
            yield self._filler


@dataclass
class Served:
    """A running server and what drives its model."""

    url: str
    engine: ScriptedEngine
    tokenizer: Tokenizer
    template: XTML = field(default_factory=XTML)
    generator: Any = None

    def say(self, *turns: Message) -> None:
        """What the model says next, request by request."""
        self.engine.script.extend(self.spell(turn) for turn in turns)

    def spell(self, turn: Message) -> list[int]:
        """A turn as the model samples it: markers as they are, words one byte at a time."""
        segments = self.template.render([turn], generate=False)
        prefix = self.template.render([], generate=True)
        ids: list[int] = []
        for segment in segments[len(prefix) :]:
            if segment.special:
                ids.append(self.tokenizer.special(segment.text))
            else:
                for byte in segment.text.encode():
                    ids.append(byte_ids(self.tokenizer)[byte])
        return ids

    def wait_idle(self) -> None:
        """Until the server has noticed that nothing is in flight."""
        deadline = time.monotonic() + 10
        while self.generator.in_flight and time.monotonic() < deadline:
            pass
        assert self.generator.in_flight == 0

    def prompts(self) -> list[list[int]]:
        """Prompts the engine was given, in order."""
        return [generation.prompt_ids for generation in self.engine.seen]


def byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """The id of each single byte."""
    return {data[0]: id_ for id_ in range(tokenizer.vocab_size) if len(data := tokenizer.bytes_of([id_])) == 1}


@contextmanager
def serving(tokenizer: Tokenizer, context_length: int = 4096, **settings: object) -> Iterator[Served]:
    """A scripted server on a free loopback port."""
    engine = ScriptedEngine(tokenizer, context_length)
    section = ServeSection(**{"port": 0, "api_key_env": KEY_VARIABLE, "drain_seconds": 5, **settings})
    app = create_app(AsyncEngine(engine), tokenizer, XTML(), model_name=MODEL, settings=section)
    with background(app, section) as url:
        yield Served(url, engine, tokenizer, generator=app.state.generator)
