"""From a checked request to a stream of what the model says, the same for every API.

`Generator.plan` settles the prompt, the sampling and the thinking budget, and refuses what cannot fit before any
work is done. A `Choice` runs one generation: an async iterator of deltas, then its `answer`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from overland.chat import Message, Template, Tokenizer, ToolCall, ToolSpec, normalise_effort
from overland.chat.tokenizer import MEDIA_PAD
from overland.chat.xtml_grammar import turn_grammar
from overland.engine import AsyncEngine, Budget, Generation, Picture, Sampling
from overland.errors import OverlandError
from overland.model.vision.preprocess import Preprocessing
from overland.serve.admission import Admission, Load
from overland.serve.conversation_log import ConversationLog
from overland.serve.effort_controller import EffortController
from overland.serve.errors import ApiError, bad_request
from overland.serve.grammar import GrammarConstraint, Grammars
from overland.serve.memory import memory_usage
from overland.serve.metrics import Metrics
from overland.serve.settings import ServeSection
from overland.serve.stops import StopText
from overland.serve.turns import Prompt, PromptBuilder, SampledTurns

LONG_PROMPT = 20_000
"""Characters from which a prompt is encoded beside the event loop."""


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
    named: frozenset[str] | None = None  # the only tools that may be called; None: all
    strict: bool = False  # arguments must follow their schemas
    answer: Mapping[str, Any] | None = None  # the form of the response, see chat.xtml_grammar.Answer
    answer_field: str = "response_format"
    response_format: dict[str, Any] | None = None  # the same as it is shown to the model
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0
    salt: str = ""
    request_id: str = ""
    deadline: float | None = None  # time.monotonic() seconds
    pictures: Mapping[str, Picture] = field(default_factory=dict)  # of the messages, by hash
    prompt_ids: tuple[int, ...] | None = None  # ids to be used as they are, in place of the rendered messages

    @property
    def characters(self) -> int:
        """The length of what was said, about."""
        return sum(len(message.content) + len(message.reasoning) for message in self.messages)

    @property
    def images(self) -> list[Picture]:
        """The pictures in the order of their places in the prompt."""
        return [self.pictures[part.sha256] for message in self.messages for part in message.images]


@dataclass(frozen=True)
class Plan:
    """What the engine will be asked."""

    ask: Ask
    prompt: Prompt
    effort: str
    max_tokens: int
    seed: int
    budget: Budget | None
    grammar: str | None = None
    reduced: int = 0  # levels by which the effort controller lowered it

    @property
    def load(self) -> Load:
        """What it will cost."""
        return Load(len(self.prompt.ids), self.max_tokens, self.ask.choices)


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
    top: tuple[tuple[int, float], ...] = ()
    channel: str = ""  # that the token is text of: think, response, or "" for markup and calls


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
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    versions: list[int | str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    errors: tuple[str, ...] = ()


class Generator:
    """The engine with a template, a memory of sampled turns, meters and a limit on what is in flight."""

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        template: Template,
        metrics: Metrics,
        settings: ServeSection,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.engine = engine
        self.preprocessing = preprocessing
        engine.engine.token_limit = tokenizer.vocab_size
        self.tokenizer = tokenizer
        self.template = template
        self.metrics = metrics
        self.settings = settings
        self.turns = SampledTurns(settings.sampled_turn_tokens)
        self.prompts = PromptBuilder(template, tokenizer, self.turns)
        self.grammars = Grammars(tokenizer)
        self.stop_ids = tuple(template.stop_ids(tokenizer))
        self.think_close = tuple(template.think_close_ids(tokenizer))
        self.log: ConversationLog | None = None
        self.admission = Admission(settings, metrics)
        self.controller = EffortController(settings)
        self._running: dict[int, tuple[str, Generation]] = {}
        self._numbers = itertools.count()
        for tier in ("low", "high", "max"):
            limit = settings.think_budget(tier)
            if limit is not None:
                metrics.level(metrics.budget_tokens, tier, limit)

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""
        return min(self.engine.engine.context_length, self.engine.engine.most_tokens)

    async def prompt(self, ask: Ask) -> Prompt:
        """The prompt of a request. Raises a 400 where the template cannot say the conversation.

        A long one is encoded beside the event loop, which answers others meanwhile: it takes a second a megabyte.
        """
        if ask.prompt_ids is not None:
            return self.prompts.given(ask.prompt_ids)
        build = functools.partial(
            self.prompts.build, ask.messages, ask.tools, self.effort(ask), True, ask.tool_choice, ask.response_format
        )
        try:
            return await asyncio.to_thread(build) if ask.characters > LONG_PROMPT else build()
        except OverlandError as error:
            raise bad_request("messages", str(error)) from None

    def effort(self, ask: Ask) -> str:
        """The tier a request runs at: low, high or max. "none" is low with its thinking closed at once."""
        return normalise_effort(ask.effort or self.controller.default_effort())

    async def plan(self, ask: Ask) -> Plan:
        """Settles everything about a request. Raises 400 context_length_exceeded where its prompt does not fit."""
        if self.settings.effort_controller:
            self.pressure()
        prompt = await self.prompt(ask)
        room = self.context_length - len(prompt.ids)
        if room < 1:
            raise ApiError(
                400,
                f"messages: the prompt has {len(prompt.ids)} tokens, which leaves no room for an answer in the "
                f"context of {self.context_length}",
                param="messages",
                code="context_length_exceeded",
            )
        self._check_places(prompt, ask)
        for source, turns in (("sampled", prompt.reused), ("rendered", prompt.rendered)):
            self.metrics.count(self.metrics.turns, source, turns)
        max_tokens = min(room, ask.max_tokens or self.settings.max_tokens)
        effort = self.effort(ask)
        seed = secrets.randbits(31) if ask.seed is None else ask.seed
        budget = self._budget(ask, effort, max_tokens)
        reduced = self.controller.level if ask.effort is None and ask.think_budget is None else 0
        if reduced:
            self.metrics.count(self.metrics.effort_reduced, self.controller.reason)
        return Plan(ask, prompt, effort, max_tokens, seed, budget, self._grammar(ask), reduced)

    def _check_places(self, prompt: Prompt, ask: Ask) -> None:
        """A 400 where ids that a client put together have other places for pictures than its messages have pictures."""
        if self.preprocessing is None or ask.prompt_ids is None:
            return
        places = sum(part.places for message in ask.messages for part in message.images)
        if (found := prompt.ids.count(self.tokenizer.special(MEDIA_PAD))) != places:
            raise bad_request("tokens", f"{found} places for pictures, the messages' pictures have {places}")

    def _grammar(self, ask: Ask) -> str | None:
        """The grammar a turn must follow, compiled once here so that a wrong one is refused before any work."""
        calls = "none" if not ask.tools else {"none": "none", "required": "required"}.get(ask.tool_choice, "auto")
        if ask.answer is None and (calls == "none" or not (ask.strict or calls == "required" or ask.named)):
            return None
        if ask.answer is None and not self.grammars.installed:
            return None  # calls are then asked for in words
        tools = [tool for tool in ask.tools if ask.named is None or tool.name in ask.named]
        where = ask.answer_field if ask.answer is not None else "tools"
        try:
            lark = turn_grammar(tools, calls=calls, parallel=ask.parallel_calls, answer=ask.answer)
            self.grammars.constraint(lark)
        except OverlandError as error:
            raise bad_request(where, str(error), "unsupported_schema") from None
        return lark

    def constraint(self, plan: Plan) -> GrammarConstraint | None:
        """A constraint in its first state, for one choice."""
        return None if plan.grammar is None else self.grammars.constraint(plan.grammar)

    def _budget(self, ask: Ask, effort: str, max_tokens: int) -> Budget | None:
        """The least of: the tier's budget, the client's, and what leaves room for an answer."""
        tier = self.settings.think_budget(effort)
        if ask.effort is None and ask.think_budget is None:
            tier = self.controller.budget(tier)
        limits = [tier, ask.think_budget, 0 if ask.effort == "none" else None]
        if self.settings.answer_reserve:
            limits.append(max(0, max_tokens - self.settings.answer_reserve - len(self.think_close)))
        known = [limit for limit in limits if limit is not None]
        if not known or min(known) >= max_tokens:
            return None
        return Budget(limit=min(known), until=self.think_close[0], forced=self.think_close)

    @property
    def in_flight(self) -> int:
        """Generations admitted and not yet ended."""
        return self.admission.in_flight

    def pressure(self) -> int:
        """The effort controller's level, brought up to date."""
        signals = self.controller.signals(self.engine.engine.stats(), memory_usage())
        level = self.controller.look(signals)
        self.metrics.effort_level.set(level)
        return level

    def register(self, generation: Generation, request_id: str = "") -> int:
        """Remembers a running generation, so that it can be ended from outside; returns its key."""
        key = next(self._numbers)
        self._running[key] = (request_id, generation)
        return key

    def unregister(self, key: int) -> None:
        """Forgets a generation that has ended."""
        del self._running[key]

    def cancel_all(self, request_ids: Collection[str] | None = None) -> int:
        """Ends what is running (of these requests); its clients are told so, in their answer or in a last event."""
        ended = [g for name, g in self._running.values() if request_ids is None or name in request_ids]
        for generation in ended:
            self.engine.cancel(generation)
        return len(ended)

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
            min_p=plan.ask.min_p,
            presence_penalty=plan.ask.presence_penalty,
            frequency_penalty=plan.ask.frequency_penalty,
            repetition_penalty=plan.ask.repetition_penalty,
            logit_bias=plan.ask.logit_bias,
            top_logprobs=plan.ask.top_logprobs,
        )
        clock = Clock(owner, plan.effort)
        stream = owner.engine.submit(
            plan.prompt.ids,
            sampling,
            plan.budget,
            plan.ask.salt,
            images=plan.ask.images,
            constraint=owner.constraint(plan),
            priority=owner.admission.priority(plan.load),
            deadline=plan.ask.deadline,
        )
        key = owner.register(stream.generation, plan.ask.request_id)
        finished = cut = False
        try:
            async for one in stream:
                clock.token(stream.generation)
                answer.ids.append(one.token)
                answer.logprobs.append(one.logprob)
                answer.forced.append(one.forced)
                answer.top.append(one.top)
                answer.cached_tokens = stream.generation.cached_tokens
                events, cut = self._read(self._parser.feed([one.token]))
                if cut:
                    owner.engine.cancel(stream.generation)
                if events and events[0].kind != "think":
                    clock.responded()
                ordinary = owner.tokenizer.special_name(one.token) is None
                channel = self._parser.channel if ordinary else ""
                yield Delta(one.token, one.logprob, tuple(events), one.top, channel)
                if cut:
                    break
            answer.versions = list(stream.generation.versions)
            if not cut:
                answer.finish = stream.generation.finish_reason or "stop"
            tail = self._finish(cut)
            clock.end(len(answer.ids))
            finished = True
            if tail:
                yield Delta(None, 0.0, tuple(tail))
        finally:
            owner.unregister(key)
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
        if answer.finish in ("cancelled", "deadline"):
            raise ended_early(answer.finish)
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
        self._record()
        return tail

    def _record(self) -> None:
        """The conversation with this answer, for the log."""
        owner, ask, answer = self._owner, self.plan.ask, self.answer
        if owner.log is None:
            return
        said = Message("assistant", answer.content, answer.reasoning, tuple(answer.calls))
        owner.log.record(
            {
                "id": ask.request_id,
                "choice": self.number,
                "time": time.time(),
                "model": owner.metrics.model,
                "effort": self.plan.effort,
                "messages": [message.to_openai() for message in [*ask.messages, said]],
                "tools": [tool.to_openai() for tool in ask.tools],
                "tool_choice": ask.tool_choice,
                "finish_reason": answer.finish,
                "errors": list(answer.errors),
                "sampling": {"temperature": ask.temperature, "top_p": ask.top_p, "seed": self.plan.seed + self.number},
                "usage": {
                    "prompt_tokens": answer.prompt_tokens,
                    "cached_tokens": answer.cached_tokens,
                    "completion_tokens": len(answer.ids),
                    "reasoning_tokens": answer.reasoning_tokens,
                },
                "weight_version": answer.versions[-1] if answer.versions else None,
            }
        )

    def _measure(self) -> None:
        answer, meters = self.answer, self._owner.metrics
        meters.measure(answer.prompt_tokens, answer.cached_tokens, len(answer.ids), answer.finish)
        meters.count(meters.thinking_tokens, self.plan.effort, answer.reasoning_tokens)
        if any(answer.forced):
            meters.count(meters.budget_exhausted, self.plan.effort)


def ended_early(reason: str) -> ApiError:
    """What a client is told whose generation was cancelled or ran into its deadline."""
    if reason == "deadline":
        return ApiError(504, "the request's time was over", code="deadline_exceeded")
    return ApiError(503, "the server ended this generation early", code="cancelled", retry_after=1)


class Clock:
    """Times of one generation, from its submission."""

    def __init__(self, owner: Generator, effort: str | None = None) -> None:
        self._owner = owner
        self._metrics = owner.metrics
        self._effort = effort
        self._start = time.perf_counter()
        self._first = self._last = 0.0
        self._responded = False

    def token(self, generation: Generation) -> None:
        """A token came."""
        now, meters = time.perf_counter(), self._metrics
        if self._first:
            meters.between_tokens.observe(now - self._last)
        else:
            self._first = now
            meters.first_token.observe(now - self._start)
            begun = min(now, max(self._start, generation.begun or self._start))
            meters.queue_time.observe(begun - self._start)
            meters.prefill_time.observe(now - begun)
            self._owner.controller.saw_first_token(now - self._start)
            self._owner.controller.saw_prompt(len(generation.prompt_ids), generation.cached_tokens)
            if self._effort is not None:
                meters.first_token_by_effort.labels(meters.model, self._effort).observe(now - self._start)
        self._last = now

    def responded(self) -> None:
        """A token of the answer itself came: its thinking is over."""
        if not self._responded and self._effort is not None:
            self._responded = True
            seconds = time.perf_counter() - self._start
            self._metrics.first_response_by_effort.labels(self._metrics.model, self._effort).observe(seconds)

    def end(self, tokens: int) -> None:
        """The last token has come."""
        now, meters = time.perf_counter(), self._metrics
        meters.latency.observe(now - self._start)
        if self._first:
            meters.decode_time.observe(now - self._first)
        if tokens > 1:
            meters.per_token.observe((self._last - self._first) / (tokens - 1))
