"""Drives one episode: a fresh world, the agent loop with the task's tools, scores by name, the whole thing kept.

What the policy does wrong is a score. What the machinery does wrong (no sandbox, a full disk, a dead backend) is an
error on the trace, whose rewards are then None: not judged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from overland.agent import Limits, Policy, Tool, Trajectory, run_loop
from overland.agent.turn import Turn
from overland.chat import Message
from overland.environments.episode import Episode, MessageNode, ModelCall, Trace
from overland.environments.load import task_data
from overland.environments.scoring import Scoring
from overland.environments.task import Task
from overland.environments.verify import Reward, combine, judge, not_judged
from overland.environments.world import World
from overland.errors import OverlandError, UsageError

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox
    from overland.engine import Sampling

CALL_SECONDS = 60.0
"""After which a world that does not answer a call has failed. Commands and tests have shorter limits of their own."""


async def run_episode(
    task: Task,
    policy: Policy,
    effort: str,
    sampling: Sampling,
    limits: Limits | None = None,
    *,
    sandbox: Sandbox | None = None,
    scoring: Scoring | None = None,
    number: int | None = None,
    id: str | None = None,
    group: str | None = None,
    run: dict[str, Any] | None = None,
    model: str = "",
) -> Episode:
    """One attempt at `task`. The terminal needs a `sandbox`; `number` orders sessions of a batching policy.

    Raises UsageError for wrong input (an empty or too long prompt); every other failure is in the episode.
    """
    scoring = scoring or Scoring()
    episode = Episode(id=id or uuid4().hex, env=task.domain, task=task_data(task), group=group, run=run)
    trace = Trace(id=f"{episode.id}-0", tools=task.tool_specs(), effort=effort, model=model, start=time.time())
    trace.sampling = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    failures: list[Exception] = []
    dimensions: dict[str, Reward] = not_judged(task)
    trajectory: Trajectory | None = None
    try:
        async with AsyncExitStack() as stack:
            # The session comes first: a policy that batches must know of every episode before the first one asks.
            async with policy.session(number):
                world = await stack.enter_async_context(task.open_world(sandbox))
                tools = world_tools(world, failures)
                trajectory = await run_loop(
                    policy, task.messages(), tools, effort=effort, sampling=sampling, limits=limits
                )
            if trajectory.error is not None:
                failures.append(OverlandError(trajectory.error))
            if not failures:
                dimensions = await judge(task, trajectory, world)
    except UsageError:
        raise
    except Exception as error:  # whatever an environment does: the run goes on, and nothing was judged
        failures.append(error)
    trace.end = time.time()
    trace.errors = [{"type": type(error).__name__, "message": str(error)} for error in failures]
    if trajectory is not None:
        record(trajectory, len(task.messages()), trace)
        episode.is_timeout = trajectory.stop == "deadline"
    trace.dimensions = not_judged(task) if failures else dimensions
    trace.reward = combine(trace.dimensions, wrong=scoring.wrong, harm=scoring.harm)
    episode.traces.append(trace)
    return episode


def world_tools(world: World, failures: list[Exception]) -> list[Tool]:
    """The world's tools for the loop. A failure of the world itself is noted in `failures` as well as observed."""

    def tool(name: str) -> Callable[[dict[str, Any]], Awaitable[str]]:
        async def run(arguments: dict[str, Any]) -> str:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    return await world.use(name, arguments)
            except TimeoutError as error:
                failures.append(OverlandError(f"the world did not answer {name} within {CALL_SECONDS:g} seconds"))
                raise failures[-1] from error
            except Exception as error:
                failures.append(error)
                raise

        return run

    return [Tool(spec, tool(spec.name), seconds=2 * CALL_SECONDS) for spec in world.specs]


def record(trajectory: Trajectory, given: int, trace: Trace) -> None:
    """Fills `trace` with what happened; the first `given` messages are the task's own."""
    messages, turns = trajectory.messages, iter(trajectory.turns)
    sequence: list[int] = []
    parent: int | None = None
    done = 0  # messages that have a node on the current branch
    for at, message in enumerate(messages):
        if at < given or message.role != "assistant":
            continue
        turn = next(turns)
        prompt = turn.prompt_ids or []
        if prompt[: len(sequence)] != sequence:
            sequence, parent, done = [], None, 0  # not a continuation, token for token: a branch of its own
        parent = _add_inputs(trace, messages[done:at], prompt[len(sequence) :], parent)
        parent = _add_turn(trace, turn, parent)
        sequence = [*prompt, *(turn.ids or [])]
        done = at + 1
    _add_inputs(trace, messages[done:], [], parent)
    trace.stop = trajectory.stop
    trace.info["tool_calls"] = [
        {"turn": c.turn, "name": c.call.name, "code": c.code, "seconds": round(c.seconds, 6)} for c in trajectory.calls
    ]
    trace.metrics = {
        "turns": float(len(trajectory.turns)),
        "tool_calls": float(len(trajectory.calls)),
        "malformed": float(sum(trajectory.malformed.values())),
        "output_tokens": float(trace.output_tokens),
        "reasoning_tokens": float(trace.reasoning_tokens),
    }


def _add_inputs(trace: Trace, messages: list[Message], ids: list[int], parent: int | None) -> int | None:
    """Nodes for messages that the policy was given; the last one holds all their tokens."""
    for at, message in enumerate(messages):
        own = list(ids) if at == len(messages) - 1 else []
        flags = [False] * len(own)
        trace.nodes.append(
            MessageNode(message, parent, False, own, flags, [], list(flags), timestamp=trace.start)
        )  # fmt: skip
        parent = len(trace.nodes) - 1
    return parent


def _add_turn(trace: Trace, turn: Turn, parent: int | None) -> int:
    ids = list(turn.ids or [])
    forced = list(turn.forced or [False] * len(ids))
    logprobs = [value for value, on in zip(turn.logprobs or [], forced, strict=True) if not on] if ids else []
    mask = [not on for on in forced]
    trace.nodes.append(MessageNode(turn.message, parent, True, ids, mask, logprobs, forced, timestamp=trace.end))
    node = len(trace.nodes) - 1
    trace.calls.append(
        ModelCall(
            node=node,
            finish_reason="tool_calls" if turn.message.tool_calls else turn.finish_reason,
            prompt_tokens=turn.usage.prompt_tokens,
            completion_tokens=turn.usage.completion_tokens,
            reasoning_tokens=turn.usage.reasoning_tokens,
            cached_tokens=turn.usage.cached_tokens,
            policy_version=turn.policy_version,
            start=trace.start,
            end=trace.end,
        )
    )
    return node
