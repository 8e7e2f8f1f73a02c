"""One generation as a client sees it: its tokens read into channels, deltas as they come, the answer at the end."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from overland.chat import Message, ToolCall
from overland.engine import Generation, Sampling
from overland.serve.errors import ApiError
from overland.serve.stops import StopText

if TYPE_CHECKING:
    from overland.serve.generation import Generator, Plan


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
    others_tokens: int = 0  # of the paths that were explored beside this one
    others_reasoning: int = 0
    explored: dict[str, Any] | None = None  # how many paths, how many of them agree, what picked this one

    @property
    def tokens(self) -> int:
        """All that was generated for it."""
        return len(self.ids) + self.others_tokens

    @property
    def extras(self) -> dict[str, Any]:
        """What no API has a field for, where there is something: what broke the format, how it was explored."""
        broken = {"parse_errors": list(self.errors)} if self.errors else {}
        return broken if self.explored is None else {**broken, "explored": self.explored}

    @property
    def thought(self) -> int:
        """All that was generated as thinking."""
        return self.reasoning_tokens + self.others_reasoning


class Choice:
    """One generation. Iterate it once; leaving early cancels it in the engine.

    path: its number among the paths of an exploration, which settles the one that is picked; None: it stands alone.
    """

    def __init__(self, owner: Generator, plan: Plan, number: int, path: int | None = None) -> None:
        self.number = number
        self._path = path
        self._seed = plan.seed + number * plan.paths + (path or 0)
        self._cut = False
        self.plan = plan
        self.answer = Answer(prompt_tokens=len(plan.prompt.ids))
        self._owner = owner
        self._parser = owner.template.parser(owner.tokenizer, thinking=True)
        self._stop_text = StopText(plan.ask.stops)
        self._call: dict[int, int] = {}  # the parser's index of a call -> ours
        self._arguments: list[list[str]] = []
        # A call that was not offered is shown as what it is, in words: a client without tools can do nothing with it.
        self._may_call = bool(plan.ask.tools) and plan.ask.tool_choice != "none"

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Every token as it is sampled. After the last one `answer` is whole."""
        owner, plan, answer = self._owner, self.plan, self.answer
        sampling = Sampling(
            temperature=plan.ask.temperature,
            top_p=plan.ask.top_p,
            top_k=plan.ask.top_k,
            max_tokens=plan.max_tokens,
            seed=self._seed,
            stop_ids=owner.stop_ids,
            min_p=plan.ask.min_p,
            presence_penalty=plan.ask.presence_penalty,
            frequency_penalty=plan.ask.frequency_penalty,
            repetition_penalty=plan.ask.repetition_penalty,
            logit_bias=plan.ask.logit_bias,
            top_logprobs=plan.ask.top_logprobs,
        )
        clock = Clock(owner, plan.effort, first=not self._path)
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
                if self._path is None and events and events[0].kind != "think":
                    clock.responded()
                ordinary = owner.tokenizer.special_name(one.token) is None
                channel = self._parser.channel if ordinary else ""
                yield Delta(one.token, one.logprob, tuple(events), one.top, channel)
                if cut:
                    break
            answer.versions = list(stream.generation.versions)
            if not cut:
                answer.finish = stream.generation.finish_reason or "stop"
            self._cut = cut
            tail = self._finish(cut)
            clock.end(len(answer.ids))
            if self._path is None:
                self.settle()
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
            elif not self._may_call:
                text, stop = self._stop_text.feed(_in_words(kind, rest, bool(self.answer.content)))
                events += self._say(text)
                if stop is not None:
                    self.answer.finish, self.answer.stop_text = "stop_string", stop
                    return events, True
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
        if answer.calls and answer.finish == "stop":
            answer.finish = "calls"
        return tail

    def settle(self) -> None:
        """This is what the client gets: remembered for the history, counted, logged."""
        owner, answer = self._owner, self.answer
        if not self._cut:
            said = Message("assistant", answer.content, answer.reasoning, tuple(answer.calls))
            owner.prompts.remember(self.plan.prompt, said, answer.ids)
        self._measure()
        self._record()

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
                **({} if answer.explored is None else {"explored": answer.explored}),
                "sampling": {"temperature": ask.temperature, "top_p": ask.top_p, "seed": self._seed},
                "usage": {
                    "prompt_tokens": answer.prompt_tokens,
                    "cached_tokens": answer.cached_tokens,
                    "completion_tokens": answer.tokens,
                    "reasoning_tokens": answer.thought,
                },
                "weight_version": answer.versions[-1] if answer.versions else None,
            }
        )

    def _measure(self) -> None:
        answer, meters = self.answer, self._owner.metrics
        meters.measure(answer.prompt_tokens, answer.cached_tokens, answer.tokens, answer.finish)
        meters.count(meters.thinking_tokens, self.plan.effort, answer.thought)
        if any(answer.forced):
            meters.count(meters.budget_exhausted, self.plan.effort)


def _in_words(kind: str, rest: list[Any], follows: bool) -> str:
    """A piece of a call as text: one JSON object a line, `{"name": ..., "arguments": {...}}`."""
    if kind == "call_start":
        name = json.dumps(rest[1], ensure_ascii=False)
        return ("\n" if follows else "") + f'{{"name": {name}, "arguments": '
    return str(rest[1]) if kind == "call_args" else "}"


def ended_early(reason: str) -> ApiError:
    """What a client is told whose generation was cancelled or ran into its deadline."""
    if reason == "deadline":
        return ApiError(504, "the request's time was over", code="deadline_exceeded")
    return ApiError(503, "the server ended this generation early", code="cancelled", retry_after=1)


class Clock:
    """Times of one generation, from its submission. `first`: whether its first token is what a client waits for."""

    def __init__(self, owner: Generator, effort: str | None = None, first: bool = True) -> None:
        self._counts_first = first
        self._owner = owner
        self._metrics = owner.metrics
        self._effort = effort
        self._start = time.perf_counter()
        self._first = self._last = 0.0
        self._responded = False

    def token(self, generation: Generation) -> None:
        """A token came."""
        now = time.perf_counter()
        if self._first:
            self._metrics.between_tokens.observe(now - self._last)
        else:
            self._first = now
            if self._counts_first:
                self._first_token(now, generation)
        self._last = now

    def _first_token(self, now: float, generation: Generation) -> None:
        meters, owner = self._metrics, self._owner
        meters.first_token.observe(now - self._start)
        begun = min(now, max(self._start, generation.begun or self._start))
        meters.queue_time.observe(begun - self._start)
        meters.prefill_time.observe(now - begun)
        owner.controller.saw_first_token(now - self._start)
        owner.controller.saw_prompt(len(generation.prompt_ids), generation.cached_tokens)
        if self._effort is not None:
            meters.first_token_by_effort.labels(meters.model, self._effort).observe(now - self._start)

    def responded(self) -> None:
        """A token of the answer itself came: its thinking is over."""
        if not self._responded and self._effort is not None:
            self._responded = True
            seconds = time.perf_counter() - self._start
            self._metrics.first_response_by_effort.labels(self._metrics.model, self._effort).observe(seconds)

    def end(self, tokens: int) -> None:
        """The last token has come."""
        now, meters = time.perf_counter(), self._metrics
        if self._counts_first:
            meters.latency.observe(now - self._start)
        if self._first:
            meters.decode_time.observe(now - self._first)
        if tokens > 1:
            meters.per_token.observe((self._last - self._first) / (tokens - 1))
