"""What the trainer learns from: one finished episode as token ids, and the group it is compared with.

A `Sample` is the training view of an episode; the episode itself (messages, results, rewards by name) is kept
beside it in wire form and goes to the run folder untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overland.rl.failures import Failure


@dataclass(frozen=True)
class Sample:
    """One episode: `ids` is everything the policy saw and wrote, in order; the sampler's ids are never re-encoded.

    `ids[:prompt_length]` is the first prompt. `trained[i]` says that token i was sampled by the policy (not a
    prompt, not a tool's answer, not forced by a budget). `logprobs[i]` is the sampler's log-probability (nats) of
    token i under the distribution it was really drawn from; 0.0 where nothing was sampled.
    """

    id: str
    ids: tuple[int, ...]
    prompt_length: int
    trained: tuple[bool, ...]
    logprobs: tuple[float, ...]
    reward: float | None
    """What the algorithm compares. None: an infrastructure failure, the sample takes part in nothing."""
    success: bool = False
    thinking_tokens: int = 0
    output_tokens: int = 0
    over_budget: bool = False
    parse_errors: int = 0
    stop: str = ""
    failure: Failure = ""
    """Why there is no reward: `infra` (the machine) or `data` (the task)."""
    hacks: tuple[str, ...] = ()
    """The monitors that suspect this episode."""
    forked: bool = False
    """The conversation could not be continued token for token somewhere; only its last part is here."""
    policy_version: int = 0
    """The oldest policy version that wrote any token of this sample."""
    episode: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.trained) == len(self.logprobs):
            raise ValueError(
                f"sample {self.id}: {len(self.ids)} ids, {len(self.trained)} mask values and "
                f"{len(self.logprobs)} log-probabilities; the three must match"
            )
        if not 0 < self.prompt_length <= len(self.ids):
            raise ValueError(f"sample {self.id}: prompt_length {self.prompt_length} is not in 1..{len(self.ids)}")
        if any(self.trained[: self.prompt_length]):
            raise ValueError(f"sample {self.id}: the prompt is marked as sampled")

    @property
    def trained_tokens(self) -> int:
        return sum(self.trained)

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut off at a limit."""
        return self.stop in ("length", "budget", "context", "turns")


@dataclass(frozen=True)
class Group:
    """The samples of one task at one effort: the only samples that are ever compared with each other."""

    domain: str
    level: int
    effort: str
    task_id: str
    samples: tuple[Sample, ...]

    def with_samples(self, samples: Sequence[Sample]) -> Group:
        return replace(self, samples=tuple(samples))

    @property
    def judged(self) -> list[Sample]:
        """The samples that have a reward."""
        return [s for s in self.samples if s.reward is not None]

    @property
    def failed_data(self) -> bool:
        """Whether the task itself is broken: every sample failed on its data."""
        return bool(self.samples) and all(s.failure == "data" for s in self.samples)

    @property
    def has_variance(self) -> bool:
        """Whether at least two judged samples got different rewards: without that there is nothing to compare."""
        return len({s.reward for s in self.judged}) > 1
