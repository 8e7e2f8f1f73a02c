"""An episode as it is kept: traces of message nodes, read and written in the wire form of verifiers v1 (0.4).

A trace is a graph: each node is a message with its parent and the tokens it added. A root-to-leaf path is a branch, and
each branch is one training sample; nothing is stored twice. What verifiers has no field for (forced tokens, policy
versions, roles of rewards, effort) travels in `info["overland"]`, so a record survives being read by others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overland.chat import Message, ToolSpec
from overland.environments.verify import Reward, succeeded

TRACE_VERSION = 1
DECIMALS = 8
"""Digits after the point of log-probabilities on disk."""


@dataclass
class MessageNode:
    """One message and the tokens that it added to the sequence (template scaffold included).

    token_ids, mask and forced are parallel. mask: drawn by the model, so trainable. forced: put there by a budget, not
    drawn. logprobs has one value for each True of mask. Where several messages came in between two turns, the last of
    them holds the tokens of all.
    """

    message: Message
    parent: int | None = None
    sampled: bool = False
    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    timestamp: float = 0.0


@dataclass
class ModelCall:
    """One request to the policy. `node` is the assistant node it produced; prompt_tokens includes cached ones."""

    node: int | None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    policy_version: int | str | None = None
    start: float = 0.0
    end: float = 0.0


@dataclass(frozen=True)
class Branch:
    """One training sample; all lists are parallel. logprobs is 0 where nothing was drawn."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    forced: list[bool]


@dataclass
class Trace:
    """What one agent did in an episode."""

    id: str
    nodes: list[MessageNode] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    tools: list[ToolSpec] = field(default_factory=list)
    dimensions: dict[str, Reward] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    reward: float | None = None
    """The combined reward (verify.combine), or None: not judged."""
    stop: str | None = None
    effort: str = ""
    model: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0

    @property
    def success(self) -> bool | None:
        return succeeded(self.dimensions)

    @property
    def ok(self) -> bool:
        """Nothing in the machinery failed; says nothing about the answer."""
        return not self.errors

    @property
    def branches(self) -> list[Branch]:
        """Root-to-leaf paths, in the order of their leaves."""
        inner = {node.parent for node in self.nodes}
        return [self._branch(leaf) for leaf in range(len(self.nodes)) if leaf not in inner]

    @property
    def messages(self) -> list[Message]:
        """The conversation of the last branch."""
        return [self.nodes[index].message for index in self._path(len(self.nodes) - 1)] if self.nodes else []

    @property
    def output_tokens(self) -> int:
        return sum(call.completion_tokens for call in self.calls)

    @property
    def reasoning_tokens(self) -> int:
        return sum(call.reasoning_tokens for call in self.calls)

    def _path(self, leaf: int) -> list[int]:
        path, index = [], leaf
        while index is not None:
            path.append(index)
            parent = self.nodes[index].parent
            if parent is None:
                break
            index = parent
        return path[::-1]

    def _branch(self, leaf: int) -> Branch:
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        forced: list[bool] = []
        for index in self._path(leaf):
            node = self.nodes[index]
            drawn = iter(node.logprobs)
            ids += node.token_ids
            mask += node.mask
            forced += node.forced
            logprobs += [next(drawn) if sampled else 0.0 for sampled in node.mask]
        return Branch(ids, mask, logprobs, forced)


@dataclass
class Episode:
    """One task, attempted once. `task` is plain data from which environments.load rebuilds the task."""

    id: str
    env: str
    task: dict[str, Any]
    traces: list[Trace] = field(default_factory=list)
    group: str | None = None
    run: dict[str, Any] | None = None
    """Who ran it, in verifiers' form: {"type": "train", "id": ..., "work": {"type": "train", "step": ...}}."""
    is_timeout: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.errors and all(trace.ok for trace in self.traces)

    @property
    def reward(self) -> float | None:
        return self.traces[0].reward if self.traces else None

    @property
    def success(self) -> bool | None:
        return self.traces[0].success if self.traces else None

    def to_record(self) -> dict[str, Any]:
        """The JSON object of verifiers' WireEpisode."""
        from overland.environments.wire import episode_to_record

        return episode_to_record(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Episode:
        """Reads `to_record`'s form and records that verifiers itself wrote. Raises BrokenFileError naming the field."""
        from overland.environments.wire import episode_from_record

        return episode_from_record(record)
