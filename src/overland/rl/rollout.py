"""Episodes by the hundred: every order becomes a group of independent samples of the same task.

All live episodes share one event loop and one engine, which steps only when every open episode waits for it; so the
order of requests, and with per-request seeds every sampled token, is the same in every run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overland.agent import Limits, LocalPolicy
from overland.chat import EFFORTS, Tokenizer
from overland.engine import Engine, Sampling
from overland.environments import Episode, Scoring, Task, Taskset, run_episode, task_data
from overland.errors import UsageError
from overland.rl.curriculum import Order
from overland.rl.delivery import check_delivery
from overland.rl.failures import failure_of
from overland.rl.monitors import hack_flags
from overland.rl.quarantine import Quarantine
from overland.rl.samples import Group, Sample
from overland.rl.section import RLSection
from overland.train.ranks import Ranks

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox


class EpisodeRollouts:
    """Runs orders as episodes in their environments with the policy in this process."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        tasksets: Mapping[str, Taskset],
        section: RLSection,
        *,
        sandbox: Sandbox | None = None,
        scoring: Scoring | None = None,
        stage: str = "rl",
        quarantine: Quarantine | None = None,
    ) -> None:
        self.engine, self.tasksets, self.section = engine, dict(tasksets), section
        self.sandbox, self.scoring, self.stage = sandbox, scoring, stage
        self.quarantine = quarantine or Quarantine()
        # Where a recipe names no levels, those that its turns have room for.
        self.levels = {
            name: tuple(
                taskset.levels
                if name in section.domains and section.domains[name].levels
                else taskset.levels_within(section.max_turns)
            )
            for name, taskset in self.tasksets.items()
        }
        think = {effort: section.efforts.of(effort).think_tokens for effort in EFFORTS}
        self.policy = LocalPolicy(engine, tokenizer, think_budget=think)

    def set_weights(self, model: Any, version: int) -> None:
        """The engine samples from the trainer's own module; the version drops and salts its stored prefixes."""
        self.engine.load_weights(model, version)
        if self.section.check_weights:
            check_delivery(model, self.engine, version)

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        """The orders' groups, in order. Every rank runs its share of them and gets all."""
        ranks = Ranks.current()
        parts = ranks.gather(self._run_own(ranks.share(orders), version))
        return [parts[i % ranks.world][i // ranks.world] for i in range(len(orders))]

    def _run_own(self, orders: Sequence[Order], version: int) -> list[Group]:
        tasks = [self.tasksets[order.domain].task("train", order.level, order.seed) for order in orders]
        size = self.section.group_size
        jobs = [
            (order, task, index)
            for order, task in zip(orders, tasks, strict=True)
            for index in range(size)
            if task.id not in self.quarantine
        ]
        samples = iter(asyncio.run(self._run_all(jobs, version)))
        return [
            Group(
                order.domain,
                order.level,
                order.effort,
                task.id,
                tuple(next(samples) for _ in range(0 if task.id in self.quarantine else size)),
            )
            for order, task in zip(orders, tasks, strict=True)
        ]

    async def _run_all(self, jobs: Sequence[tuple[Order, Task, int]], version: int) -> list[Sample]:
        samples: list[Sample] = []
        for start in range(0, len(jobs), self.section.live_episodes):
            wave = jobs[start : start + self.section.live_episodes]
            try:
                async with asyncio.TaskGroup() as group:  # the first error cancels the others
                    running = [
                        group.create_task(self._run_one(*job, number, version)) for number, job in enumerate(wave)
                    ]
            except* Exception as failed:  # every episode may say the same; one of them is enough
                raise failed.exceptions[0] from None
            samples += [task.result() for task in running]
        return samples

    async def _run_one(self, order: Order, task: Task, index: int, number: int, version: int) -> Sample:
        group = f"{task.id}/{order.effort}/{version}"
        try:
            return to_sample(await self._episode(order, task, index, number, version, group), version)
        except UsageError as error:  # the task cannot be asked: its prompt is empty or does not fit
            return unasked(f"{group}/{index}", task, error, version)

    async def _episode(self, order: Order, task: Task, index: int, number: int, version: int, group: str) -> Episode:
        section, effort = self.section, self.section.efforts.of(order.effort)
        return await run_episode(
            task,
            self.policy,
            order.effort,
            Sampling(
                temperature=section.temperature,
                max_tokens=section.turn_tokens,
                seed=sample_seed(section.seed, version, order, index),
            ),
            Limits(
                max_turns=section.max_turns,
                output_tokens=effort.output_tokens,
                wall_seconds=section.episode_seconds,
            ),
            sandbox=self.sandbox,
            scoring=self.scoring,
            number=number,
            id=f"{group}/{index}",
            group=group,
            run={"type": "train", "id": self.stage, "work": {"type": "train", "step": version}},
        )


def unasked(id: str, task: Task, error: UsageError, version: int) -> Sample:
    """A sample of a task that could not be put to the policy: a failure of its data."""
    error_record = {"type": "UsageError", "message": str(error)}
    episode = Episode(id=id, env=task.domain, task=task_data(task), errors=[error_record])
    return Sample(
        id, (0,), 1, (False,), (0.0,), None, failure="data", policy_version=version, episode=episode.to_record()
    )


def sample_seed(seed: int, version: int, order: Order, index: int) -> int:
    """A seed of its own for every sample of a run, below 2^31."""
    text = f"{seed}/{version}/{order.domain}/{order.level}/{order.effort}/{order.seed}/{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def to_sample(episode: Episode, version: int) -> Sample:
    """The training view of an episode: the ids that the sampler saw and wrote, never re-encoded text.

    An episode that ran into its wall-time limit says something about the machine, not about the policy: no reward.
    Where the conversation could not be continued token for token it has several branches; the last one is trained,
    which gives the episode one weight, and the metrics count it (`rl/forked`).
    """
    trace = episode.traces[0]
    branches = trace.branches
    failed = episode.is_timeout or not episode.ok
    ids, trained, logprobs = [0], [False], [0.0]  # an episode that failed before its first token
    first = 1
    if branches and branches[-1].token_ids:
        branch = branches[-1]
        ids, trained, logprobs = branch.token_ids, branch.mask, branch.logprobs
        written = (i for i in range(len(ids)) if branch.mask[i] or branch.forced[i])
        first = next(written, len(ids))
    record = episode.to_record()
    return Sample(
        id=episode.id,
        ids=tuple(ids),
        prompt_length=first,
        trained=tuple(trained),
        logprobs=tuple(logprobs),
        reward=None if failed else episode.reward,
        success=not failed and bool(episode.success),
        thinking_tokens=trace.reasoning_tokens,
        output_tokens=trace.output_tokens,
        parse_errors=int(trace.metrics.get("malformed") or 0),
        stop=trace.stop or "",
        forked=len(branches) > 1,
        policy_version=min(
            (int(c.policy_version) for c in trace.calls if c.policy_version is not None), default=version
        ),
        failure=failure_of(record),
        hacks=hack_flags(record),
        episode=record,
    )
