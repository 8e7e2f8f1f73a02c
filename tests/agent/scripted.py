"""A policy that says what a test wrote down, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overland.agent import Turn, Usage
from overland.chat import Message, ToolCall, ToolSpec


@dataclass(frozen=True)
class Sampling:
    """Stands in for the engine's, so that these tests load no torch."""

    max_tokens: int = 100


def says(content: str = "", *calls: tuple[str, str], tokens: int = 10, **fields: Any) -> Turn:
    """A turn with `calls` as (tool, arguments text)."""
    made = tuple(ToolCall(f"call_{i}", name, arguments) for i, (name, arguments) in enumerate(calls, start=1))
    return Turn(Message("assistant", content, tool_calls=made), usage=Usage(0, tokens), **fields)


class ScriptedPolicy:
    """Gives `turns` in order, the last one again and again. An exception in the list is raised."""

    def __init__(self, *turns: Turn | Exception, context_length: int | None = None, prompt: int | None = None) -> None:
        self.turns = list(turns)
        self.context_length = context_length
        self.prompt = prompt
        self.asked: list[dict[str, Any]] = []
        self.seconds = 0.0

    def prompt_tokens(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> int | None:
        return self.prompt

    def session(self, number: int | None = None) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        effort: str,
        sampling: Any,
        *,
        previous: Turn | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        self.asked.append({"conversation": list(conversation), "previous": previous, "max_tokens": max_tokens})
        if self.seconds:
            await asyncio.sleep(self.seconds)
        turn = self.turns[min(len(self.asked), len(self.turns)) - 1]
        if isinstance(turn, Exception):
            raise turn
        return turn
