"""A policy that says what it is told to say, with made-up token ids: one id a character."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from overland.agent import Turn
from overland.agent.sandbox.base import Sandbox
from overland.agent.sandbox.bwrap import Bwrap
from overland.agent.turn import Usage
from overland.chat import Message, ToolSpec
from overland.engine import Sampling
from overland.errors import OverlandError


def ids_of(messages: Sequence[Message]) -> list[int]:
    return [ord(c) for m in messages for c in f"{m.role}:{m.reasoning}{m.content}"]


class Scripted:
    """Answers with `replies` in order. `fork_at`: a turn whose prompt does not continue the tokens before it.
    `forced`: the first token of every turn is flagged as forced."""

    context_length: int | None = None

    def __init__(self, replies: Sequence[Message], *, fork_at: int = -1, forced: bool = False) -> None:
        self.replies, self.fork_at, self.forced = list(replies), fork_at, forced
        self.asked = 0
        self.prompts: list[list[int]] = []

    def prompt_tokens(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> int | None:
        return None

    @asynccontextmanager
    async def session(self, number: int | None = None) -> AsyncIterator[None]:
        yield

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        effort: str,
        sampling: Sampling,
        *,
        previous: Turn | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        if self.asked == len(self.replies):
            raise OverlandError("the script is over")
        reply = self.replies[self.asked]
        if previous is None or self.asked == self.fork_at:
            prompt = [7 if self.asked == self.fork_at else 8, *ids_of(conversation)]
        else:
            last = max(i for i, m in enumerate(conversation) if m.role == "assistant")
            prompt = [*(previous.prompt_ids or []), *(previous.ids or []), *ids_of(conversation[last + 1 :])]
        self.asked += 1
        ids = ids_of([reply])
        self.prompts.append([*prompt, *ids])
        return Turn(
            message=reply,
            prompt_ids=prompt,
            ids=ids,
            logprobs=[-0.5] * len(ids),
            forced=[self.forced and at == 0 for at in range(len(ids))],
            usage=Usage(len(prompt), len(ids), len(reply.reasoning), 0),
            policy_version=3,
        )


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    try:
        return Bwrap()
    except OverlandError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.fixture
def sampling() -> Sampling:
    return Sampling(max_tokens=64, seed=1)


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted
