"""The one face of every template family: what the rest of the house may ask of a chat format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from overland.chat.messages import Message
from overland.chat.segments import Encoded, Segment
from overland.chat.tokenizer import Tokenizer
from overland.chat.tools import ToolCall, ToolSpec

Event: TypeAlias = tuple[str, str] | tuple[str, int] | tuple[str, int, str]
"""("think" | "response", text), ("call_start", i, name), ("call_args", i, JSON fragment) or ("call_end", i), where i is
the call's position in ParsedTurn.tool_calls, from 0. The fragments of a call, joined, are its arguments."""


@dataclass(frozen=True)
class Fork:
    """The new messages cannot be appended to the given ids: the caller has to render the conversation anew."""

    reason: str


@dataclass(frozen=True)
class ParsedTurn:
    """What an assistant said, by channel.

    errors: "code: detail" lines for everything malformed; text that belongs to no channel is kept here.
    complete: the message was closed and ended as the format has it (False when generation was cut).
    """

    reasoning: str
    content: str
    tool_calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]
    complete: bool


class TurnParser(Protocol):
    """Reads generated ids as they come. What it returns does not depend on how they are split over feed()."""

    tail: list[Event]
    """After finish(): events that only the end of the ids released, such as half a character."""

    @property
    def channel(self) -> str:
        """Where text would go now: "think", "response", or "" (markup, a call, nowhere)."""
        ...

    def feed(self, ids: Sequence[int]) -> list[Event]: ...

    def finish(self) -> ParsedTurn: ...


class Template(Protocol):
    """Conversations to token ids and back, for one family of models."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        effort: str | None = None,
        thinking: bool = True,
        generate: bool = True,
        tool_choice: str | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> list[Segment]:
        """The conversation as segments; with `generate`, up to where the assistant goes on. Raises UsageError."""
        ...

    def encode(self, segments: Sequence[Segment], tokenizer: Tokenizer) -> Encoded: ...

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        tools: Sequence[ToolSpec] = (),
        effort: str | None = None,
        thinking: bool = True,
        generate: bool = True,
        tool_choice: str | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> list[int]:
        """Render and encode."""
        ...

    def stop_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids after which an assistant's turn is over."""
        ...

    def bridge(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tokenizer: Tokenizer,
        thinking: bool = True,
        calls: Sequence[ToolCall] | None = None,
        tool_choice: str | None = None,
    ) -> list[int] | Fork:
        """previous_ids (which end with a finished assistant turn) + new messages + generation prefix.

        Nothing that was sampled is encoded again. `calls` are those of that assistant turn, where the caller gave
        them other ids than the parser does; without them they are read from previous_ids.
        """
        ...

    def parser(self, tokenizer: Tokenizer, thinking: bool = True) -> TurnParser: ...

    def think_close_ids(self, tokenizer: Tokenizer) -> list[int]:
        """Ids that end the thinking and begin the answer; an engine forces them when a budget is spent."""
        ...
