"""One answer of a policy: its channels as text and, where the backend gives them, the tokens that were sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from overland.chat import Message


@dataclass(frozen=True)
class Usage:
    """Tokens of one turn. reasoning_tokens is part of completion_tokens, cached_tokens of prompt_tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


@dataclass
class Turn:
    """What a policy said.

    message: reasoning, content and tool calls. prompt_ids / ids / logprobs / forced: what was sampled after which
    prompt, with the log-probability of each token and whether it was forced; None where the backend has no ids.
    """

    message: Message
    finish_reason: str = "stop"
    """"stop", "length" or "cancelled"."""
    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    forced: list[bool] | None = None
    parse_errors: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    policy_version: int | str | None = None
    continues: bool = True
    """False where the turn ended in a way after which the conversation cannot go on token for token."""
    fork: str | None = None
    """Why this turn's prompt does not begin with the tokens of the turn before it; None where it does."""
    provider_state: Any = None
    """What an outside provider wants back unchanged at the next turn (signed thinking blocks), opaque."""
