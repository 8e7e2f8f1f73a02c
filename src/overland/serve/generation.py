"""From a checked request to a stream of what the model says, the same for every API.

`Generator.plan` settles the prompt, the sampling and the thinking budget, and refuses what cannot fit before any
work is done. A `Choice` runs one generation: an async iterator of deltas, then its `answer`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from overland.chat import Message, Template, Tokenizer, ToolCall, ToolSpec, normalise_effort
from overland.engine import AsyncEngine, Budget, Generation, Sampling
from overland.errors import OverlandError
from overland.serve.errors import ApiError, bad_request
from overland.serve.metrics import Metrics
from overland.serve.settings import ServeSection
from overland.serve.stops import StopText
from overland.serve.turns import Prompt, PromptBuilder, SampledTurns


@dataclass(frozen=True)
class Ask:
    """A request in neutral terms. None means that the client did not say."""

    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"  # auto, none, required
    parallel_calls: bool = True
    effort: str | None = None  # any spelling an API knows; "none" asks for no thinking
    think_budget: int | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    choices: int = 1
    call_prefix: str = "call_"


@dataclass(frozen=True)
class Plan:
    """What the engine will be asked."""

    ask: Ask
    prompt: Prompt
    effort: str
    max_tokens: int
    seed: int
    budget: Budget | None


@dataclass(frozen=True)
class Event:
    """A piece of an answer. `kind` is think, text, call_start, call_args or call_end; `index` counts calls from 0."""

    kind: str
    text: str = ""
    index: int = 0
    name: str = ""
    id: str = ""


@dataclass(frozen=True)
class Delta:
    """One token, and what it made readable (often nothing, sometimes the text of several tokens)."""

    token: int | None
    logprob: float
    events: tuple[Event, ...]


@dataclass
class Answer:
    """A finished choice. `ids`, `logprobs` and `forced` line up; `finish` is stop, stop_string, length or calls."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = "stop"
    stop_text: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    errors: tuple[str, ...] = ()


class Generator:
    """The engine with a template, a memory of sampled turns, meters and a limit on what is in flight."""

    def __init__(
        self, engine: AsyncEngine, tokenizer: Tokenizer, template: Template, metrics: Metrics, settings: ServeSection
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.metrics = metrics
        self.settings = settings
        self.turns = SampledTurns(settings.sampled_turn_tokens)
        self.prompts = PromptBuilder(template, tokenizer, self.turns)
        self.stop_ids = tuple(template.stop_ids(tokenizer))
        self.think_close = tuple(template.think_close_ids(tokenizer))
        self.in_flight = 0
        self.draining = False
        self.running: dict[int, Generation] = {}
        for tier in ("low", "high", "max"):
            limit = settings.think_budget(tier)
            if limit is not None:
                metrics.level(metrics.budget_tokens, tier, limit)

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.engine.engine.context_length

    def prompt(self, ask: Ask) -> Prompt:
        """The prompt of a request. Raises a 400 where the template cannot say the conversation."""
        try:
            return self.prompts.build(ask.messages, ask.tools, self.effort(ask), True, ask.tool_choice)
        except OverlandError as error:
            raise bad_request("messages", str(error)) from None

    def effort(self, ask: Ask) -> str:
        """The tier a request runs at: low, high or max. "none" is low with its thinking closed at once."""
        return normalise_effort(ask.effort or self.settings.default_effort)

    def plan(self, ask: Ask) -> Plan:
        """Settles everything about a request. Raises 400 context_length_exceeded where its prompt does not fit."""
        prompt = self.prompt(ask)
        room = self.context_length - len(prompt.ids)
        if room < 1:
            raise ApiError(
                400,
                f"messages: the prompt has {len(prompt.ids)} tokens, which leaves no room for an answer in the "
                f"context of {self.context_length}",
                param="messages",
                code="context_length_exceeded",
            )
        for source, turns in (("sampled", prompt.reused), ("rendered", prompt.rendered)):
            self.metrics.count(self.metrics.turns, source, turns)
        max_tokens = min(room, ask.max_tokens or self.settings.max_tokens)
        effort = self.effort(ask)
        seed = secrets.randbits(31) if ask.seed is None else ask.seed
        return Plan(ask, prompt, effort, max_tokens, seed, self._budget(ask, effort, max_tokens))

    def _budget(self, ask: Ask, effort: str, max_tokens: int) -> Budget | None:
        """The least of: the tier's budget, the client's, and what leaves room for an answer."""
        limits = [self.settings.think_budget(effort), ask.think_budget, 0 if ask.effort == "none" else None]
        if self.settings.answer_reserve:
            limits.append(max(0, max_tokens - self.settings.answer_reserve - len(self.think_close)))
        known = [limit for limit in limits if limit is not None]
        if not known or min(known) >= max_tokens:
            return None
        return Budget(limit=min(known), until=self.think_close[0], forced=self.think_close)

    def admit(self, plan: Plan) -> Callable[[], None]:
        """Takes a request's place; call what it returns to give the place back.

        Raises 429 when the server is full and 503 when it is shutting down.
        """
        wait = self.settings.retry_after_seconds
        if self.draining:
            self.metrics.count(self.metrics.rejected, "draining")
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=wait)
        size = plan.ask.choices
        if self.in_flight + size > self.settings.max_in_flight:
            self.metrics.count(self.metrics.rejected, "full")
            raise ApiError(
                429,
                f"the server is full: {self.in_flight} of {self.settings.max_in_flight} generations in flight",
                code="rate_limit_exceeded",
                retry_after=wait,
            )
        self.in_flight += size

        def leave() -> None:
            self.in_flight -= size

        return leave

    def cancel_all(self) -> None:
        """Ends what is running; its clients are told so, in their answer or in a stream's last event."""
        for generation in list(self.running.values()):
            self.engine.cancel(generation)

    def choices(self, plan: Plan) -> list[Choice]:
        """The generations of a request; each has its own seed."""
        return [Choice(self, plan, number) for number in range(plan.ask.choices)]


class Choice:
    """One generation. Iterate it once; leaving early cancels it in the engine."""

    def __init__(self, owner: Generator, plan: Plan, number: int) -> None:
        self.number = number
        self.plan = plan
        self.answer = Answer(prompt_tokens=len(plan.prompt.ids))
        self._owner = owner
        self._parser = owner.template.parser(owner.tokenizer, thinking=True)
        self._stop_text = StopText(plan.ask.stops)
        self._call: dict[int, int] = {}  # the parser's index of a call -> ours
        self._arguments: list[list[str]] = []

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Every token as it is sampled. After the last one `answer` is whole."""
        owner, plan, answer = self._owner, self.plan, self.answer
        sampling = Sampling(
            temperature=plan.ask.temperature,
            top_p=plan.ask.top_p,
            top_k=plan.ask.top_k,
            max_tokens=plan.max_tokens,
            seed=plan.seed + self.number,
            stop_ids=owner.stop_ids,
        )
        clock = _Clock(owner.metrics)
        stream = owner.engine.stream(plan.prompt.ids, sampling, plan.budget)
        owner.running[id(stream.generation)] = stream.generation
        finished = cut = False
        try:
            async for one in stream:
                clock.token()
                answer.ids.append(one.token)
                answer.logprobs.append(one.logprob)
                answer.forced.append(one.forced)
                answer.cached_tokens = stream.generation.cached_tokens
                events, cut = self._read(self._parser.feed([one.token]))
                if cut:
                    owner.engine.cancel(stream.generation)
                yield Delta(one.token, one.logprob, tuple(events))
                if cut:
                    break
            if not cut:
                answer.finish = stream.generation.finish_reason or "stop"
            tail = self._finish(cut)
            clock.end(answer)
            finished = True
            if tail:
                yield Delta(None, 0.0, tuple(tail))
        finally:
            del owner.running[id(stream.generation)]
            if not stream.generation.done:
                owner.engine.cancel(stream.generation)
            if not finished:
                owner.metrics.cancelled.inc()

    def _read(self, parsed: list[Any]) -> tuple[list[Event], bool]:
        """The parser's events as ours; True when the answer ends here although the model would go on."""
        events: list[Event] = []
        for kind, *rest in parsed:
            if kind == "think":
                self.answer.reasoning += rest[0]
                events.append(Event("think", rest[0]))
            elif kind == "response":
                text, stop = self._stop_text.feed(rest[0])
                events += self._say(text)
                if stop is not None:
                    self.answer.finish, self.answer.stop_text = "stop_string", stop
                    return events, True
            elif self.plan.ask.tool_choice == "none":
                continue  # the client asked for no calls: it gets none
            elif kind == "call_start":
                events += self._flush()
                if self._arguments and not self.plan.ask.parallel_calls:
                    return events, True
                events.append(self._open_call(*rest))
            elif kind == "call_args":
                index = self._call[rest[0]]
                self._arguments[index].append(rest[1])
                events.append(Event("call_args", rest[1], index))
            elif kind == "call_end":
                events.append(Event("call_end", index=self._call[rest[0]]))
        return events, False

    def _open_call(self, index: int, name: str) -> Event:
        call = ToolCall(id=self.plan.ask.call_prefix + secrets.token_hex(12), name=name, arguments="")
        self._call[index] = len(self.answer.calls)
        self.answer.calls.append(call)
        self._arguments.append([])
        return Event("call_start", index=self._call[index], name=name, id=call.id)

    def _say(self, text: str) -> list[Event]:
        if not text:
            return []
        self.answer.content += text
        return [Event("text", text)]

    def _flush(self) -> list[Event]:
        """Text held back because it might have become a stop string."""
        return self._say(self._stop_text.rest()) if self.answer.stop_text is None else []

    def _finish(self, cut: bool) -> list[Event]:
        """Completes the answer; returns what only its end released (half a character, a held back stop string)."""
        answer, owner = self.answer, self._owner
        if answer.finish == "cancelled":
            raise ApiError(503, "the server ended this generation early", code="cancelled", retry_after=1)
        answer.errors = self._parser.finish().errors
        tail = [] if cut else [*self._read(self._parser.tail)[0], *self._flush()]
        answer.calls = [
            ToolCall(id=call.id, name=call.name, arguments="".join(pieces))
            for call, pieces in zip(answer.calls, self._arguments, strict=True)
        ]
        close = owner.think_close[0]
        answer.reasoning_tokens = answer.ids.index(close) if close in answer.ids else len(answer.ids)
        if not cut:
            said = Message("assistant", answer.content, answer.reasoning, tuple(answer.calls))
            owner.prompts.remember(self.plan.prompt, said, answer.ids)
        if answer.calls and answer.finish == "stop":
            answer.finish = "calls"
        self._measure()
        return tail

    def _measure(self) -> None:
        answer, meters = self.answer, self._owner.metrics
        meters.prompt_tokens.inc(answer.prompt_tokens)
        meters.cached_tokens.inc(answer.cached_tokens)
        meters.cache_queries.inc(answer.prompt_tokens)
        meters.cache_hits.inc(answer.cached_tokens)
        meters.generation_tokens.inc(len(answer.ids))
        meters.request_prompt.observe(answer.prompt_tokens)
        meters.request_generation.observe(len(answer.ids))
        meters.count(meters.thinking_tokens, self.plan.effort, answer.reasoning_tokens)
        meters.count(meters.success, "length" if answer.finish == "length" else "stop")
        if any(answer.forced):
            meters.count(meters.budget_exhausted, self.plan.effort)


class _Clock:
    """Times of one generation, from its admission."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._first = self._last = 0.0

    def token(self) -> None:
        now = time.perf_counter()
        if self._first:
            self._metrics.between_tokens.observe(now - self._last)
        else:
            self._first = now
            self._metrics.first_token.observe(now - self._start)
        self._last = now

    def end(self, answer: Answer) -> None:
        self._metrics.latency.observe(time.perf_counter() - self._start)
        if len(answer.ids) > 1:
            self._metrics.per_token.observe((self._last - self._first) / (len(answer.ids) - 1))
