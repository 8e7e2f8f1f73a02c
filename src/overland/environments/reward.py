"""One dimension of a score, and what is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from overland.chat import Message

Role = Literal["gate", "reward", "monitor"]


@dataclass(frozen=True)
class Reward:
    """One dimension of a score."""

    value: float | None
    weight: float = 1.0
    role: Role = "reward"


class Finished(Protocol):
    """What is scored: the conversation and why it stopped ("answered" where the policy gave a final answer)."""

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def stop(self) -> str: ...


@dataclass(frozen=True)
class Attempt:
    """A finished conversation that no policy produced: a probe's, a demonstration's."""

    messages: Sequence[Message]
    stop: str = "answered"
