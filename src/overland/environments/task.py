"""A task: frozen data made from (domain, split, level, seed), the oracle that solves it, the world it is solved in."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from overland.chat import Message, ToolCall, ToolSpec, normalise_effort
from overland.environments.reward import Finished, Reward, Role
from overland.environments.world import World, opened

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox


@dataclass(frozen=True)
class Step:
    """One call of the oracle.

    `plan` is the subject at hand behind the word that led to it, then the path from that word on: ("boss zumi", "boss",
    "friend", "town").
    """

    plan: tuple[str, ...]
    args: Mapping[str, Any]
    tool: str = ""
    """The tool that is called; empty in a world that has only one."""


def thinking(effort: str, subject: str, path: Sequence[str]) -> str:
    """What a demonstration thinks: nothing at low, "boss zumi." at high, "boss zumi boss>friend>town." at max.

    Each part can be copied from the text before it, which is what a small model does best: the word and the value stand
    side by side in the tool's answer, and from the word on, the rest of the path is one run up to its full stop,
    however long.
    """
    if effort == "low":
        return ""
    return f"{subject}." if effort == "high" else f"{subject} {'>'.join(path)}."


@dataclass(frozen=True)
class Task(abc.ABC):
    """A task of one domain. Subclasses hold the world's data and open it; everything here follows from the fields."""

    domain: str
    kind: str
    split: str
    level: int
    seed: int
    prompt: str
    answer: str
    steps: tuple[Step, ...]
    outcome: str = field(default="answer", kw_only=True)
    """What success is: "answer" (a word or a number), "state" (the world changed exactly as asked; then say done), or
    "checks" (the reward is in `checks`; the closing word and what else was changed are gates)."""
    closing: str = field(kw_only=True)
    """The word that the answer belongs to ("town"): a demonstration's last thinking is this word and the answer."""
    tolerance: float = field(default=0.0, kw_only=True)
    """How far a number may lie from the answer; 0: the answer is compared as a word."""
    check_roles: ClassVar[Mapping[str, Role]] = {}
    """The dimensions that `checks` adds, so that an attempt which could not be judged has them too."""

    @property
    def id(self) -> str:
        return f"{self.domain}/{self.split}/{self.level}/{self.seed}/{self.kind}"

    def messages(self) -> list[Message]:
        """The conversation a policy starts from: the prompt, nothing else (the tools are declared by the template)."""
        return [Message(role="user", content=self.prompt)]

    @abc.abstractmethod
    def world(self) -> World:
        """A fresh, unopened world of this task."""

    def tool_specs(self) -> list[ToolSpec]:
        return list(self.world().specs)

    def checks(self, finished: Finished, world: World) -> Mapping[str, Reward]:
        """Dimensions of this task's own, beside answer, state and harm. `world` has been examined."""
        return {}

    def leaks(self) -> list[str]:
        """Where what is asked for could be read without the work; admission refuses a task that has such a place."""
        return []

    def read_answer(self, answer: str) -> str:
        """The part of a final answer that is compared with the task's (an answer may also have to name its sources)."""
        return answer

    def thought(self, effort: str, step: Step) -> str:
        """What a demonstration thinks before a step."""
        return thinking(effort, step.plan[0], step.plan[1:])

    def last_thought(self, effort: str) -> str:
        """What it thinks before the answer."""
        return thinking(effort, f"{self.closing} {self.answer}", (self.closing,))

    def open_world(self, sandbox: Sandbox | None = None) -> AbstractAsyncContextManager[World]:
        """`async with task.open_world(sandbox) as world`: a policy's world. What runs commands needs the sandbox."""
        return opened(self.world(), sandbox)

    def oracle_conversation(self, effort: str) -> list[Message]:
        """The oracle's run through the real tools, as a demonstration at one effort.

        Low thinks nothing, high names what is at hand, max writes the whole remaining path each turn. The thinking is
        regular enough for a small model to continue it to depths that it has not been shown.
        """
        effort = normalise_effort(effort)
        messages = self.messages()
        with self.world() as world:
            for index, step in enumerate(self.steps):
                name = step.tool or world.specs[0].name
                call = ToolCall(
                    id=f"{name}:{index}",
                    name=name,
                    arguments=json.dumps(dict(step.args), ensure_ascii=False, separators=(",", ":")),
                )
                thought = self.thought(effort, step)
                messages.append(Message(role="assistant", content="", reasoning=thought, tool_calls=(call,)))
                result = world.use_now(name, step.args)
                messages.append(Message(role="tool", content=result, tool_call_id=call.id, name=call.name))
        messages.append(Message(role="assistant", content=self.answer, reasoning=self.last_thought(effort)))
        return messages
