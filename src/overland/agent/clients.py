"""The same endpoint policy through the provider's own Python client: what a user's program does, exactly."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from overland.agent.endpoint import EndpointPolicy
from overland.errors import OverlandError, UsageError


class ClientPolicy(EndpointPolicy):
    """EndpointPolicy whose requests go through `openai.AsyncOpenAI` or `anthropic.AsyncAnthropic`.

    Fields that the client does not know go out as its `extra_body`. Raises UsageError where the client is not
    installed (extra `clients`).
    """

    def __init__(self, base_url: str, model: str, api: str = "openai", api_key: str = "none", **options: Any) -> None:
        super().__init__(base_url, model, api, api_key, **options)
        self._base_url, self._api = base_url.rstrip("/"), api
        self._clients: dict[int, Any] = {}

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        create = self._create()
        known = inspect.signature(create).parameters
        extra = {name: value for name, value in body.items() if name not in known}
        try:
            answer = await create(**{name: value for name, value in body.items() if name in known}, extra_body=extra)
        except Exception as error:  # both clients raise their own APIError family, with the server's reason in it
            raise OverlandError(f"{self._url}: {type(error).__name__}: {error}") from error
        return answer.model_dump(mode="json")

    def _create(self) -> Any:
        loop = id(asyncio.get_running_loop())
        if loop not in self._clients:
            self._clients = {loop: self._new_client()}
        client = self._clients[loop]
        return client.chat.completions.create if self._api == "openai" else client.messages.create

    def _new_client(self) -> Any:
        try:
            if self._api == "openai":
                from openai import AsyncOpenAI

                return AsyncOpenAI(base_url=self._base_url, api_key=self._key or "none", timeout=self._timeout)
            from anthropic import AsyncAnthropic

            root = self._base_url.removesuffix("/v1")
            return AsyncAnthropic(base_url=root, api_key=self._key or "none", timeout=self._timeout)
        except ImportError:
            raise UsageError(f"the {self._api} client is not installed; pip install 'overland[clients]'") from None

    async def close(self) -> None:
        """Close the client of the running event loop: it cannot be closed on another one."""
        client = self._clients.pop(id(asyncio.get_running_loop()), None)
        if client is not None:
            await client.close()
