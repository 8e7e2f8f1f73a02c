"""Nothing that was sampled is ever tokenised again.

Encoding the text of an answer need not give the ids that were sampled, so the server keeps a finished turn's ids.
When a client sends its history back, the prompt is put together from those ids with the template's `bridge`, and
equals, id by id, what the engine saw (so that the prefix cache hits and a trainer's turns line up). A turn that was
edited, evicted or produced elsewhere is rendered and encoded like any other text.

A turn is found by the conversation before it and by what it says. Ids of tool calls take no part (each API invents
its own), nor the order of keys in a call's arguments; reasoning that a client did not send back is restored, because
the model must see its own thinking again and many clients cannot carry it.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from overland.chat import Fork, MalformedCall, Message, Template, Tokenizer, ToolCall, ToolSpec

Key = bytes


@dataclass(frozen=True)
class SampledTurn:
    """The ids of one finished assistant turn, as the engine gave them.

    `prefix` is the hash of the prompt before a tool choice was added to it, `tail` the generation prefix that was
    really used (it differs from the plain one when the request had a tool choice).
    """

    ids: array[int]
    prefix: bytes
    tail: array[int]
    thinking: bool
    reasoning: str


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for the engine, with what is needed to remember the turn that follows it."""

    ids: list[int]
    history: Key
    prefix: bytes
    tail: tuple[int, ...]
    thinking: bool
    reused: int = 0
    rendered: int = 0


def hash_ids(ids: Sequence[int]) -> bytes:
    """SHA-256 of token ids as 32-bit words."""
    return hashlib.sha256(array("i", ids).tobytes()).digest()


def _arguments(call: ToolCall) -> str:
    """A call's arguments in one spelling: clients parse them and print them again."""
    try:
        return json.dumps(call.parsed(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except MalformedCall:
        return call.arguments


def message_key(history: Key, message: Message, *, reasoning: bool) -> Key:
    """The hash of a message after a history; without its reasoning where `reasoning` is false."""
    calls = [[call.name, _arguments(call)] for call in message.tool_calls]
    said: list[Any] = [message.role, message.content, message.reasoning if reasoning else None, calls]
    if message.parts:  # the same words around other pictures, or elsewhere among them, are another message
        said.append([part if isinstance(part, str) else {"image": part.sha256} for part in message.parts])
    return hashlib.sha256(history + json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass")).digest()


class SampledTurns:
    """The least recently used turns go first, so that at most `max_tokens` ids are held."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._turns: OrderedDict[Key, SampledTurn] = OrderedDict()
        self._tokens = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def tokens(self) -> int:
        """Ids held now, counted once a key."""
        return self._tokens

    def remember(self, prompt: Prompt, message: Message, ids: Sequence[int]) -> None:
        """Keeps a turn that ended by itself (its ids end with the template's stop id)."""
        turn = SampledTurn(array("i", ids), prompt.prefix, array("i", prompt.tail), prompt.thinking, message.reasoning)
        with self._lock:
            # Two keys: with the reasoning for clients that send it back, without for those that cannot.
            for reasoning in (True, False):
                self._put(message_key(prompt.history, message, reasoning=reasoning), turn)

    def find(self, history: Key, message: Message, *, thinking: bool) -> SampledTurn | None:
        """The ids of this turn of this conversation, or None where it was not sampled here or has been edited."""
        with self._lock:
            key = message_key(history, message, reasoning=bool(message.reasoning))
            turn = self._turns.get(key)
            if turn is None or turn.thinking != thinking:
                return None
            self._turns.move_to_end(key)
            return turn

    def _put(self, key: Key, turn: SampledTurn) -> None:
        previous = self._turns.pop(key, None)
        if previous is not None:
            self._tokens -= len(previous.ids)
        self._turns[key] = turn
        self._tokens += len(turn.ids)
        while self._tokens > self._max_tokens and self._turns:
            self._tokens -= len(self._turns.popitem(last=False)[1].ids)


class PromptBuilder:
    """Builds prompts from conversations, out of sampled ids wherever this server sampled them."""

    def __init__(self, template: Template, tokenizer: Tokenizer, turns: SampledTurns) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._turns = turns

    def build(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        effort: str | None = None,
        thinking: bool = True,
        tool_choice: str | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> Prompt:
        """The ids the engine is given: the history, then the generation prefix of the next turn.

        Raises UsageError where the template cannot say the conversation.
        """
        plain = self._ids([], thinking=thinking)  # the generation prefix alone
        history: Key = hashlib.sha256(b"overland").digest()
        done: list[int] | None = None  # ids up to the end of an assistant turn that follows sampled ones
        calls: Sequence[ToolCall] = ()  # of that turn
        pending: list[Message] = []  # messages after it
        reused = rendered = 0

        def extend() -> list[int]:
            if done is None:
                return self._ids(pending, tools, effort, thinking)
            bridged = self._template.bridge(done, pending, self._tokenizer, thinking=thinking, calls=calls)
            if isinstance(bridged, Fork):
                raise RuntimeError(f"a remembered turn cannot be continued: {bridged.reason}")
            return bridged

        for message in messages:
            if message.role != "assistant":
                pending.append(message)
            elif (turn := self._turns.find(history, message, thinking=thinking)) is not None:
                message = replace(message, reasoning=message.reasoning or turn.reasoning)
                done = [*self._as_seen(extend(), turn, plain), *turn.ids]
                calls, pending = message.tool_calls, []
                reused += 1
            else:
                rendered += 1
                if done is None:
                    pending.append(message)
                else:
                    done = [*_without(extend(), plain), *self._ids([message], thinking=thinking, generate=False)]
                    calls, pending = message.tool_calls, []
            history = message_key(history, message, reasoning=True)
        base = extend()
        tail, ids = plain, base
        if tool_choice not in (None, "auto") or response_format is not None:
            tail = self._ids([], thinking=thinking, tool_choice=tool_choice, response_format=response_format)
            ids = [*_without(base, plain), *tail]
        return Prompt(ids, history, hash_ids(base), tuple(tail), thinking, reused, rendered)

    def given(self, ids: Sequence[int], thinking: bool = True) -> Prompt:
        """A prompt of ids that the client put together itself; the turn after it is found by them alone."""
        history = hashlib.sha256(b"overland ids" + hash_ids(ids)).digest()
        return Prompt(list(ids), history, hash_ids(ids), (), thinking)

    def remember(self, prompt: Prompt, message: Message, ids: Sequence[int]) -> bool:
        """Keeps a turn that a later prompt can go on from; False for one that was cut."""
        whole = [*prompt.ids, *ids]
        if not ids or isinstance(self._template.bridge(whole, [], self._tokenizer, thinking=prompt.thinking), Fork):
            return False
        self._turns.remember(prompt, message, ids)
        return True

    def _ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        effort: str | None = None,
        thinking: bool = True,
        generate: bool = True,
        tool_choice: str | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> list[int]:
        return self._template.prompt_ids(
            messages,
            self._tokenizer,
            tools,
            effort,
            thinking=thinking,
            generate=generate,
            tool_choice=tool_choice,
            response_format=response_format,
        )

    @staticmethod
    def _as_seen(base: list[int], turn: SampledTurn, plain: list[int]) -> list[int]:
        """The prompt this turn was sampled from, its tool choice included, if nothing before it has changed."""
        if list(turn.tail) != plain and hash_ids(base) == turn.prefix:
            return [*_without(base, plain), *turn.tail]
        return base


def _without(ids: list[int], tail: list[int]) -> list[int]:
    """`ids` without the `tail` they end with."""
    if ids[len(ids) - len(tail) :] != tail:
        raise RuntimeError("a prompt does not end with the template's generation prefix")
    return ids[: len(ids) - len(tail)]
