"""The agent loop: ask the policy, run what it calls, show it the results, until it answers or a limit is reached.

Every way to end has its name in `Trajectory.stop`; the message list and the turns are only ever appended to.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from overland.agent.policy import ContextFull, Policy
from overland.agent.stuck import NUDGE, NUDGE_AT, STOP_AT, StuckDetector
from overland.agent.text import MAX_ECHO, cap, clean
from overland.agent.tool import Tool, ToolResult
from overland.agent.turn import Turn, Usage
from overland.chat import Message, ToolCall, check_call, normalise_effort
from overland.chat.tools import MalformedCall
from overland.errors import OverlandError, UsageError

if TYPE_CHECKING:
    from overland.engine import Sampling

Stop = Literal["answered", "turns", "budget", "length", "context", "deadline", "stuck", "malformed", "error"]
"""How an episode ended.

answered: a turn without calls. turns, budget (output tokens), context, deadline: that limit of `Limits`.
length: one turn was cut at its own `sampling.max_tokens`. stuck: the same calls, the same results, five times.
malformed: a turn broke off the format so that the conversation cannot go on. error: the policy's backend failed
(an infrastructure failure, not to be scored; `Trajectory.error` says what).
"""


@dataclass(frozen=True)
class Limits:
    """What one episode may use in all. None: not limited."""

    max_turns: int = 16
    output_tokens: int | None = None
    """Over all turns, thinking included. What is left is each turn's own bound."""
    context_tokens: int | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True)
class CallRecord:
    """One tool call: which turn, how it went (`code` as in ToolResult), how long it took."""

    turn: int
    call: ToolCall
    code: str | None
    seconds: float


@dataclass
class Trajectory:
    """A whole episode: `messages` begins with the task and holds every turn and observation."""

    messages: list[Message]
    turns: list[Turn] = field(default_factory=list)
    stop: Stop = "answered"
    calls: list[CallRecord] = field(default_factory=list)
    malformed: Counter[str] = field(default_factory=Counter)
    """Calls that could not be run, and turns that could not be read, by code."""
    seconds: float = 0.0
    effort: str = "high"
    error: str | None = None

    @property
    def answer(self) -> str | None:
        """The final answer; None where the episode ended otherwise."""
        return self.turns[-1].message.content if self.stop == "answered" and self.turns else None

    @property
    def usage(self) -> Usage:
        """Sums over the turns."""
        return Usage(
            sum(turn.usage.prompt_tokens for turn in self.turns),
            sum(turn.usage.completion_tokens for turn in self.turns),
            sum(turn.usage.reasoning_tokens for turn in self.turns),
            sum(turn.usage.cached_tokens for turn in self.turns),
        )


async def run_loop(
    policy: Policy,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    effort: str = "high",
    sampling: Sampling,
    limits: Limits | None = None,
) -> Trajectory:
    """Runs one episode. Raises UsageError for bad input before the first step; after it, nothing but cancellation."""
    limits = limits or Limits()
    effort = normalise_effort(effort)
    context = _validate(policy, messages, tools, effort, limits)
    episode = _Episode(
        policy, list(tools), effort, sampling, limits, context, Trajectory(list(messages), effort=effort)
    )
    started = time.monotonic()
    try:
        async with asyncio.timeout(limits.wall_seconds) as deadline:
            await episode.run()
    except TimeoutError:
        if not deadline.expired():
            raise
        episode.trajectory.stop = "deadline"
    episode.trajectory.seconds = time.monotonic() - started
    return episode.trajectory


def _validate(
    policy: Policy, messages: Sequence[Message], tools: Sequence[Tool], effort: str, limits: Limits
) -> int | None:
    """Checks an episode's input and returns its context length. Raises UsageError naming field and value."""
    if not any(message.role == "user" and message.content.strip() for message in messages):
        raise UsageError("the task prompt is empty: give at least one user message with text")
    names = [tool.spec.name for tool in tools]
    if len(set(names)) < len(names):
        raise UsageError(f"two tools have the same name: {', '.join(sorted(n for n in names if names.count(n) > 1))}")
    if limits.max_turns < 1:
        raise UsageError(f"limits.max_turns is {limits.max_turns}; it must be at least 1")
    if limits.output_tokens is not None and limits.output_tokens < 1:
        raise UsageError(f"limits.output_tokens is {limits.output_tokens}; it must be at least 1")
    context = min((n for n in (limits.context_tokens, policy.context_length) if n is not None), default=None)
    length = policy.prompt_tokens(messages, [tool.spec for tool in tools], effort)
    if context is not None and length is not None and length >= context:
        raise UsageError(
            f"the task prompt is {length} tokens long with its tools, the context holds {context} and must leave room "
            "for an answer: shorten the prompt or use a model with a longer context"
        )
    return context


@dataclass
class _Episode:
    policy: Policy
    tools: list[Tool]
    effort: str
    sampling: Sampling
    limits: Limits
    context: int | None
    trajectory: Trajectory
    stuck: StuckDetector = field(default_factory=StuckDetector)
    used: int = 0

    async def run(self) -> None:
        trajectory = self.trajectory
        while True:
            stop = self._limit_reached()
            if stop:
                trajectory.stop = stop
                return
            turn = await self._ask()
            if turn is None:
                return
            trajectory.turns.append(turn)
            trajectory.messages.append(turn.message)
            self.used += turn.usage.completion_tokens
            stop = self._judge(turn)
            if stop:
                trajectory.stop = stop
                return
            if await self._observe(turn):
                trajectory.stop = "stuck"
                return

    def _limit_reached(self) -> Stop | None:
        if len(self.trajectory.turns) >= self.limits.max_turns:
            return "turns"
        if self._budget_left() == 0:
            return "budget"
        if self._context_left() == 0:
            return "context"
        return None

    def _budget_left(self) -> int | None:
        return None if self.limits.output_tokens is None else max(0, self.limits.output_tokens - self.used)

    def _context_left(self) -> int | None:
        """An upper bound: the last prompt and its answer are in the next prompt, whatever else comes."""
        if self.context is None or not self.trajectory.turns:
            return self.context
        usage = self.trajectory.turns[-1].usage
        return max(0, self.context - usage.prompt_tokens - usage.completion_tokens)

    async def _ask(self) -> Turn | None:
        bounds = [n for n in (self._budget_left(), self._context_left()) if n is not None]
        trajectory = self.trajectory
        previous = trajectory.turns[-1] if trajectory.turns else None
        try:
            return await self.policy.respond(
                trajectory.messages,
                [tool.spec for tool in self.tools],
                self.effort,
                self.sampling,
                previous=previous,
                max_tokens=min(bounds) if bounds else None,
            )
        except ContextFull as full:
            if not trajectory.turns:
                raise UsageError(f"{full}: shorten the task or use a model with a longer context") from None
            trajectory.stop = "context"
        except UsageError:
            raise
        except (OverlandError, OSError) as error:
            trajectory.stop, trajectory.error = "error", clean(f"{type(error).__name__}: {error}")
        return None

    def _judge(self, turn: Turn) -> Stop | None:
        """How the episode ends with this turn, None where it goes on."""
        if turn.finish_reason == "length":
            # Which bound cut it? The tightest one that the turn has used up.
            if self._budget_left() == 0:
                return "budget"
            if self._context_left() == 0 or (turn.usage.completion_tokens < self.sampling.max_tokens and self.context):
                return "context"
            return "length"
        if turn.finish_reason == "cancelled":
            self.trajectory.error = "the policy cancelled the turn"
            return "error"
        if turn.message.tool_calls or self._unreadable(turn):
            return None if turn.continues else "malformed"
        return "answered"

    @staticmethod
    def _unreadable(turn: Turn) -> bool:
        """The turn says nothing that could be an answer, and its form is broken: the model is told."""
        return bool(turn.parse_errors) and not turn.message.tool_calls and not turn.message.content.strip()

    async def _observe(self, turn: Turn) -> bool:
        """Runs the turn's calls in order and appends the results. True where the agent is stuck."""
        trajectory, number = self.trajectory, len(self.trajectory.turns) - 1
        if self._unreadable(turn):
            trajectory.malformed["unreadable"] += 1
            text = cap("error unreadable: " + clean("; ".join(turn.parse_errors)), MAX_ECHO)
            call = ToolCall("", "format", "")
            repeats = self.stuck.add(call, text)
            # No tool was called, hence no tool's result: an endpoint would refuse one that answers no call.
            trajectory.messages.append(Message("user", self._nudged(text, repeats)))
            return repeats >= STOP_AT
        stuck = False
        for call in turn.message.tool_calls:
            result = await self._run(call)
            text = result.text
            if not self._polls(call):
                repeats = self.stuck.add(call, text)
                text = self._nudged(text, repeats)
                stuck = stuck or repeats >= STOP_AT
            trajectory.calls.append(CallRecord(number, call, result.code, result.seconds))
            trajectory.messages.append(Message("tool", text, tool_call_id=call.id or None, name=call.name or "unknown"))
        return stuck

    async def _run(self, call: ToolCall) -> ToolResult:
        tool = next((tool for tool in self.tools if tool.spec.name == call.name), None)
        if tool is None:
            try:
                check_call(call, [tool.spec for tool in self.tools])
            except MalformedCall as error:
                result = ToolResult(cap(clean(f"error {error.code}: {error.message}"), MAX_ECHO), error.code)
        else:
            result = await tool.call(call)
        if result.code not in (None, "timeout", "tool_error"):
            self.trajectory.malformed[str(result.code)] += 1
        return result

    def _polls(self, call: ToolCall) -> bool:
        return any(tool.polling and tool.spec.name == call.name for tool in self.tools)

    @staticmethod
    def _nudged(text: str, repeats: int) -> str:
        return text + NUDGE.format(n=repeats) if NUDGE_AT <= repeats < STOP_AT else text
