"""Episodes by the hundred: every order becomes a group of independent samples of the same task.

All live episodes share one event loop and one engine, which steps only when every open episode waits for it; so the
order of requests, and with per-request seeds every sampled token, is the same in every run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from overland.agent import Limits, LocalPolicy, Trajectory
from overland.chat import EFFORTS, XTML
from overland.engine import Sampling
from overland.environments import Episode, Task, Taskset, run_episode
from overland.errors import OverlandError
from overland.rl.curriculum import Order
from overland.rl.samples import Group, Sample
from overland.rl.section import RLSection


class EpisodeRollouts:
    """Runs orders as episodes in their environments with the policy in this process."""

    def __init__(self, engine: Any, tokenizer: Any, tasksets: Mapping[str, Taskset], section: RLSection) -> None:
        self.engine, self.tokenizer, self.tasksets, self.section = engine, tokenizer, dict(tasksets), section
        self.levels = {name: tuple(taskset.levels) for name, taskset in self.tasksets.items()}
        think = {effort: section.efforts.of(effort).think_tokens for effort in EFFORTS}
        self.policy = LocalPolicy(engine, tokenizer, template=XTML(), think_budget=think)

    def set_weights(self, model: Any, version: int) -> None:
        """The engine samples from the trainer's own module; the version salts its prefix cache."""
        self.engine.load_weights(model, version)

    def run(self, orders: Sequence[Order], version: int) -> list[Group]:
        jobs = [(order, index) for order in orders for index in range(self.section.group_size)]
        tasks = {order: self.tasksets[order.domain].task("train", order.level, order.seed) for order in orders}
        samples = asyncio.run(self._run_all([(order, tasks[order], index) for order, index in jobs], version))
        size = self.section.group_size
        return [
            Group(order.domain, order.level, order.effort, tasks[order].id, tuple(samples[i * size : (i + 1) * size]))
            for i, order in enumerate(orders)
        ]

    async def _run_all(self, jobs: Sequence[tuple[Order, Task, int]], version: int) -> list[Sample]:
        samples: list[Sample] = []
        for start in range(0, len(jobs), self.section.live_episodes):
            wave = jobs[start : start + self.section.live_episodes]
            samples += await asyncio.gather(*(self._run_one(*job, version) for job in wave))
        return samples

    async def _run_one(self, order: Order, task: Task, index: int, version: int) -> Sample:
        section, effort = self.section, self.section.efforts.of(order.effort)
        sampling = Sampling(
            temperature=section.temperature,
            max_tokens=section.turn_tokens,
            seed=sample_seed(section.seed, version, order, index),
        )
        limits = Limits(
            max_turns=section.max_turns,
            output_tokens=effort.output_tokens,
            context_tokens=self.engine.context_length,
            wall_seconds=section.episode_seconds,
        )
        episode = await run_episode(task, self.policy, order.effort, sampling, limits)
        return to_sample(episode, f"{task.id}/{order.effort}/{version}/{index}", version)


def sample_seed(seed: int, version: int, order: Order, index: int) -> int:
    """A seed of its own for every sample of a run."""
    text = f"{seed}/{version}/{order.domain}/{order.level}/{order.effort}/{order.seed}/{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def to_sample(episode: Episode, id: str, version: int) -> Sample:
    """The training view of an episode: the ids that the sampler saw and wrote, never re-encoded text."""
    raise NotImplementedError


def training_ids(trajectory: Trajectory, id: str) -> tuple[list[int], int, list[bool], list[float]]:
    """(ids, first prompt's length, trained mask, sampler log-probabilities) of an episode's turns.

    Each turn's prompt must begin with everything before it: the bridge guarantees that, and a break is an error here
    because a token at another place would be trained with a log-probability that was never its own.
    """
    ids: list[int] = []
    trained: list[bool] = []
    logprobs: list[float] = []
    first = 0
    for number, turn in enumerate(trajectory.turns):
        if turn.prompt_ids is None or turn.ids is None or turn.logprobs is None:
            raise OverlandError(f"{id}: turn {number} has no token ids; RL needs a policy that runs in this process")
        if list(turn.prompt_ids[: len(ids)]) != ids:
            raise OverlandError(f"{id}: turn {number} does not continue the tokens before it; the conversation was edited")
        observed = list(turn.prompt_ids[len(ids) :])
        first = first or len(observed)
        forced = turn.forced or [False] * len(turn.ids)
        ids += [*observed, *turn.ids]
        trained += [False] * len(observed) + [not f for f in forced]
        logprobs += [0.0] * len(observed) + [0.0 if f else p for p, f in zip(turn.logprobs, forced, strict=True)]
    return ids, first, trained, logprobs
