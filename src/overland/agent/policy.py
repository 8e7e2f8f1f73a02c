"""The one face of everything that can be asked what to do next: an engine in this process or an address."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from overland.agent.turn import Turn
from overland.chat import Message, ToolSpec
from overland.errors import OverlandError

if TYPE_CHECKING:
    from overland.engine import Sampling


class ContextFull(OverlandError):
    """The conversation leaves no room for an answer. Carries both numbers."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(f"the prompt is {prompt_tokens} tokens long, the context holds {context_tokens}")
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


@runtime_checkable
class Policy(Protocol):
    """`respond` answers a conversation. Raises ContextFull where the prompt does not fit, OverlandError where the
    backend failed (an infrastructure failure, never the model's mistake)."""

    context_length: int | None
    """Tokens that prompt and answer may have together; None where it is not known."""

    async def respond(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        effort: str,
        sampling: Sampling,
        *,
        previous: Turn | None = None,
        max_tokens: int | None = None,
    ) -> Turn: ...

    def prompt_tokens(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> int | None:
        """Length of the prompt that `respond` would send first; None where only the backend can tell."""
        ...

    def session(self, number: int | None = None) -> AbstractAsyncContextManager[object]:
        """Entered for as long as an episode lives. Lets a policy that batches know whom to wait for."""
        ...
