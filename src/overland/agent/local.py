"""A policy that is an engine in this process. It keeps the ids: what was sampled is never tokenised again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from overland.agent.barrier import Barrier, Session
from overland.agent.policy import ContextFull
from overland.agent.turn import Turn, Usage
from overland.chat import XTML, Fork, Message, Template, Tokenizer, ToolSpec
from overland.engine import Budget, Engine, Generation, Sampling


class LocalPolicy:
    """Renders with `template`, generates with `engine`.

    think_budget: effort -> thinking tokens after which the thinking is closed by force (None: no bound). Forced
    tokens are flagged in `Turn.forced`.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: Template | None = None,
        think_budget: Mapping[str, int | None] | None = None,
        thinking: bool = True,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template or XTML()
        self.think_budget = dict(think_budget or {})
        self.thinking = thinking
        self.context_length: int | None = engine.context_length
        self._barrier = Barrier(engine)
        self._stops = tuple(self.template.stop_ids(tokenizer))
        self._think_close = tuple(self.template.think_close_ids(tokenizer)) if thinking else ()

    def session(self, number: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Enter for as long as an episode lives: the engine waits for every open session (see barrier.py)."""
        return self._barrier.session(number)

    def prompt_tokens(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> int | None:
        return len(self._render(conversation, tools, effort))

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
        prompt, fork = self._prompt(conversation, tools, effort, previous)
        room = self.engine.context_length - len(prompt)
        if room <= 0:
            raise ContextFull(len(prompt), self.engine.context_length)
        bound = min(n for n in (sampling.max_tokens, max_tokens, room) if n is not None)
        # A seed of its own for each turn: the same one would draw the same numbers again.
        seed = (sampling.seed * 1_000_003 + len(conversation)) % (1 << 62)
        stops = tuple(dict.fromkeys((*sampling.stop_ids, *self._stops)))
        asked = replace(sampling, max_tokens=bound, seed=seed, stop_ids=stops)
        generation = await self._barrier.generate(prompt, asked, self._budget(effort))
        return self._turn(prompt, generation, fork)

    def _budget(self, effort: str) -> Budget | None:
        limit = self.think_budget.get(effort)
        if limit is None or not self._think_close:
            return None
        return Budget(limit=limit, until=self._think_close[0], forced=self._think_close)

    def _render(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> list[int]:
        return self.template.prompt_ids(
            conversation, self.tokenizer, tools=tools, effort=effort, thinking=self.thinking
        )

    def _prompt(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str, previous: Turn | None
    ) -> tuple[list[int], str | None]:
        """The prompt, and why it does not continue the tokens of the turn before (None where it does)."""
        if previous is None:
            return self._render(conversation, tools, effort), None
        reason = "the turn before has no token ids"
        if previous.prompt_ids is not None and previous.ids is not None:
            last = max((i for i, message in enumerate(conversation) if message.role == "assistant"), default=-1)
            if last < 0 or conversation[last] != previous.message:
                reason = "the last assistant message is not what the turn before said"
            else:
                bridged = self.template.bridge(
                    [*previous.prompt_ids, *previous.ids],
                    conversation[last + 1 :],
                    self.tokenizer,
                    thinking=self.thinking,
                    calls=previous.message.tool_calls,
                )
                if not isinstance(bridged, Fork):
                    return bridged, None
                reason = bridged.reason
        return self._render(conversation, tools, effort), reason

    def _turn(self, prompt: list[int], generation: Generation, fork: str | None) -> Turn:
        ids = list(generation.ids)
        parser = self.template.parser(self.tokenizer, thinking=self.thinking)
        parser.feed(ids)
        parsed = parser.finish()
        message = Message("assistant", parsed.content, parsed.reasoning, parsed.tool_calls)
        thought = 0
        if self._think_close:
            thought = next((i for i, id_ in enumerate(ids) if id_ == self._think_close[0]), len(ids))
        return Turn(
            message=message,
            finish_reason=generation.finish_reason or "cancelled",
            prompt_ids=prompt,
            ids=ids,
            logprobs=list(generation.logprobs),
            forced=list(generation.forced),
            parse_errors=parsed.errors,
            usage=Usage(len(prompt), len(ids), thought, generation.cached_tokens),
            policy_version=generation.version,
            continues=bool(ids) and ids[-1] == self._stops[0],
            fork=fork,
        )
