"""A policy behind an OpenAI- or Anthropic-compatible address.

Reasoning goes back as it came, for every turn: `reasoning_content` even where it is empty, and signed thinking blocks
byte for byte. An endpoint that is sent less answers all the same, only worse, so nothing would ever show.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overland.agent import wire_anthropic, wire_openai
from overland.agent.policy import ContextFull
from overland.agent.text import cap
from overland.agent.turn import Turn
from overland.chat import Message, ToolSpec
from overland.errors import OverlandError, UsageError

if TYPE_CHECKING:
    import httpx

    from overland.engine import Sampling

APIS = {"openai": wire_openai, "anthropic": wire_anthropic}
RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}
MAX_REMEMBERED = 8192


class EndpointPolicy:
    """Asks `model` at `base_url` (".../v1" for openai; the folder above "v1" or itself for anthropic).

    extra: fields added to every request as they are. Failures that pass (connection, 429, 5xx) are tried again up to
    `retries` times with growing pauses; anything else is an OverlandError that names status and reason, never the key.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api: str = "openai",
        api_key: str = "",
        *,
        context_length: int | None = None,
        timeout_seconds: float = 600.0,
        retries: int = 4,
        extra: Mapping[str, Any] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if api not in APIS:
            raise UsageError(f"api is {api!r}; valid: {', '.join(APIS)}")
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"base_url is {base_url!r}; it must begin with http:// or https://")
        self.model = model
        self.context_length = context_length
        self.retries = retries
        self.extra = dict(extra or {})
        self._wire = APIS[api]
        self._url = self._wire.address(base_url.rstrip("/"))
        self._key = api_key
        self._timeout = timeout_seconds
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._states: OrderedDict[int, tuple[Message, Any]] = OrderedDict()

    def __repr__(self) -> str:
        return f"EndpointPolicy({self._url!r}, {self.model!r})"

    def session(self, number: int | None = None) -> contextlib.AbstractAsyncContextManager[None]:
        """Nothing to wait for: the endpoint batches by itself."""
        return contextlib.nullcontext()

    def prompt_tokens(self, conversation: Sequence[Message], tools: Sequence[ToolSpec], effort: str) -> int | None:
        return None

    def remember(self, turn: Turn) -> None:
        """Learns a turn's provider state again, for a conversation that was loaded from disk."""
        if turn.provider_state is not None:
            self._states[id(turn.message)] = (turn.message, turn.provider_state)
            while len(self._states) > MAX_REMEMBERED:
                self._states.popitem(last=False)

    def _state_of(self, message: Message) -> Any:
        kept = self._states.get(id(message))
        return kept[1] if kept is not None and kept[0] is message else None

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
        if previous is not None and self._state_of(previous.message) is None:
            self.remember(previous)
        bound = sampling.max_tokens if max_tokens is None else min(sampling.max_tokens, max_tokens)
        states = [self._state_of(message) for message in conversation]
        body = self._wire.request(self.model, conversation, states, tools, effort, sampling, bound)
        turn = self._wire.turn(await self._post({**body, **self.extra}))
        self.remember(turn)
        return turn

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        pause = 0.5
        for attempt in range(self.retries + 1):
            wait = pause
            try:
                answer = await self._connection().post(self._url, json=body)
            except httpx.HTTPError as error:
                problem = f"{self._url}: {type(error).__name__}: {error}"
            else:
                if answer.status_code == 200:
                    return self._read(answer)
                problem = f"{self._url} answered {answer.status_code}: {cap(answer.text, 300)}"
                if self._wire.is_context_error(answer.status_code, answer.text):
                    raise ContextFull(*self._wire.context_numbers(answer.text))
                if answer.status_code not in RETRIED:
                    raise OverlandError(problem)
                with contextlib.suppress(ValueError):
                    wait = min(60.0, float(answer.headers.get("retry-after", "")))
            if attempt < self.retries:
                await asyncio.sleep(wait * (1 + 0.1 * random.random()))
                pause = min(30.0, pause * 2)
        raise OverlandError(f"{problem} (tried {self.retries + 1} times)")

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            data = answer.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise OverlandError(f"{self._url} answered 200 with something that is no JSON object")
        return data

    def _connection(self) -> httpx.AsyncClient:
        """One client for an event loop: its connections cannot be carried to another."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = httpx.AsyncClient(
                headers=self._wire.headers(self._key), timeout=self._timeout, transport=self._transport
            )
            self._loop = loop
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
