"""What every world has in common: its tools, their observations, and what the episode did to it.

A world is the live half of a task: a folder of files with a shell, an SQLite file, a site of pages. It is made fresh
for each episode, in a temporary folder, and removed with it.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from overland.chat import ToolSpec

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox

OBSERVATION_LIMIT = 240
"""Characters of a tool's result that a policy is shown; what is cut off is counted."""


def clip(text: str, limit: int = OBSERVATION_LIMIT) -> str:
    """The head of a long observation and how much was left out; lone surrogates become question marks."""
    text = text.strip().encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    return f"{text[:limit]} ... ({len(text) - limit} more characters)"


def one_string(args: Mapping[str, object], name: str) -> str | None:
    """The string argument `name`, or None when it is missing or of another type."""
    value = args.get(name)
    return value if isinstance(value, str) else None


def tool_spec(name: str, description: str, argument: str) -> ToolSpec:
    """A tool that takes one string."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description=description, parameters=parameters)


@dataclass(frozen=True)
class Changes:
    """How a world's final state differs from the one it should be in: paths, sorted."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    touched: bool = False
    """Whether the final state differs from the initial one at all."""

    @property
    def as_expected(self) -> bool:
        return not (self.missing or self.unexpected or self.altered)


class World(abc.ABC):
    """One live world: `with world` for the oracle (trusted), `async with opened(world, sandbox)` for a policy."""

    spec: ToolSpec
    """The one tool; a world of several tools (tool_world.py) has `specs` instead."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools, as they are declared."""
        return (self.spec,)

    @abc.abstractmethod
    def open(self) -> None:
        """Build the files on disk. Raises OSError when the disk is full: an infrastructure failure, no wrong answer."""

    @abc.abstractmethod
    def close(self) -> None:
        """Remove every trace from disk."""

    def use_now(self, tool: str, args: Mapping[str, object]) -> str:
        """The observation for one call of the oracle's to the tool of that name."""
        return self.call_now(args)

    async def use(self, tool: str, args: Mapping[str, object]) -> str:
        """The observation for one call of a policy's to the tool of that name."""
        return await self.call(args)

    def call_now(self, args: Mapping[str, object]) -> str:
        """The observation for one call by the oracle, in a world of one tool."""
        raise NotImplementedError(f"{type(self).__name__} has neither call_now nor use_now")

    async def call(self, args: Mapping[str, object]) -> str:
        """The observation for one call by a policy. Never raises for what the policy wrote."""
        return self.call_now(args)

    async def start(self, sandbox: Sandbox | None = None) -> None:  # noqa: B027  (most worlds need no more than files)
        """What only a policy's episode needs: the shell in a sandbox."""

    async def stop(self) -> None:  # noqa: B027
        """End what `start` began; the final state stays readable until `close`."""

    async def examine(self) -> None:  # noqa: B027
        """What the final state needs before it can be scored, after `stop`: hidden tests in a fresh sandbox.

        Raises OverlandError where the machinery fails: the attempt is then not judged.
        """

    def put(self, files: Mapping[str, str]) -> bool:
        """Leave files in the world as somebody would who wants a reward for nothing; False where it has no files."""
        return False

    def changes(self) -> Changes:
        """The final state against the expected one; worlds that cannot be written to are always as expected."""
        return Changes()

    def __enter__(self) -> World:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@asynccontextmanager
async def opened(world: World, sandbox: Sandbox | None = None) -> AsyncIterator[World]:
    """A policy's world: built, started, and removed whatever happens in between."""
    with world:
        try:
            await world.start(sandbox)
            yield world
        finally:
            await world.stop()
