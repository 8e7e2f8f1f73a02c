"""Run a policy over held-out tasks, many episodes at once, and score what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overland.environments import STARTERS, Task, load_environment, run_episode
from overland.errors import UsageError
from overland.evaluate.outcomes import Outcome, outcome
from overland.evaluate.scores import Scores

if TYPE_CHECKING:
    from overland.agent import Limits, Policy
    from overland.agent.sandbox import Sandbox
    from overland.engine import Sampling


def suite(
    domains: Sequence[str], tasks: int, levels: Sequence[int] = (), first_seed: int = 0, max_turns: int = 8
) -> list[Task]:
    """`tasks` held-out tasks a domain, spread evenly over `levels` (empty: those that `max_turns` has room for)."""
    if tasks < 1:
        raise UsageError(f"tasks = {tasks}: give at least one task a domain")
    chosen: list[Task] = []
    for domain in domains or STARTERS:
        taskset = load_environment(domain)
        spread = tuple(levels) or taskset.levels_within(max_turns)
        for i in range(tasks):
            chosen.append(taskset.task("held_out", spread[i % len(spread)], first_seed + i // len(spread)))
    return chosen


async def evaluate_policy(
    policy: Policy,
    tasks: Sequence[Task],
    effort: str,
    sampling: Sampling,
    limits: Limits | None = None,
    concurrency: int = 128,
    progress: Callable[[Outcome], None] | None = None,
    *,
    sandbox: Sandbox | None = None,
    samples: int = 1,
    **episode: Any,
) -> Scores:
    """Run every task `samples` times at one effort and score it. Outcomes come in the order of the tasks.

    Episodes run in waves of `concurrency`, all of a wave started together, because a batching policy steps only when
    every open session waits: what a batch holds then never depends on how long a tool took. Each try has a seed of its
    own made from `sampling.seed`. `progress` is called with each outcome as it comes; `episode` goes to `run_episode`.

    Raises UsageError for wrong input, before or in an episode; what the machinery failed is an outcome not judged.
    """
    if not tasks:
        raise UsageError("tasks: nothing to evaluate; give at least one task")
    if concurrency < 1 or samples < 1:
        raise UsageError(f"concurrency = {concurrency}, samples = {samples}: both must be at least 1")
    tries = [task for task in tasks for _ in range(samples)]
    records: list[dict[str, Any]] = [{}] * len(tries)
    outcomes: dict[int, Outcome] = {}
    start = time.perf_counter()

    async def attempt(index: int) -> None:
        own = replace(sampling, seed=sampling.seed * 1_000_003 + index)
        done = await run_episode(tries[index], policy, effort, own, limits, sandbox=sandbox, number=index, **episode)
        records[index] = done.to_record()
        outcomes[index] = outcome(records[index])
        if progress is not None:
            progress(outcomes[index])

    for first in range(0, len(tries), concurrency):
        try:
            async with asyncio.TaskGroup() as wave:
                for index in range(first, min(first + concurrency, len(tries))):
                    wave.create_task(attempt(index))
        except BaseExceptionGroup as failed:  # one wrong input is the same wrong input for all: say it once
            raise failed.exceptions[0] from None
    return Scores([outcomes[i] for i in range(len(tries))], records, time.perf_counter() - start)
