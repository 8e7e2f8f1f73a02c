"""The door: an id for each request, and the API key. Plain ASGI: it must not stand between a stream and its client.

Keys are kept as SHA-256 and compared in constant time, all of them whatever the first ones say.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.datastructures import MutableHeaders

from overland.errors import UsageError
from overland.serve.errors import ApiError, error_response

OPEN = frozenset(("/health", "/ready", "/metrics"))  # what probes and scrapers read


def known_keys(key: str, file: str) -> frozenset[bytes]:
    """Digests of the key in the environment and of those in a file. Raises UsageError for a line that is no digest."""
    keys = {hashlib.sha256(key.encode()).digest()} if key else set()
    if file:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"serve.api_keys_file = {file!r} cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, start=1):
            digest = line.partition("#")[0].split()
            if not digest:
                continue
            if not re.fullmatch(r"[0-9a-fA-F]{64}", digest[0]):
                raise UsageError(f"serve.api_keys_file line {number} does not begin with a SHA-256 in hex")
            keys.add(bytes.fromhex(digest[0]))
    return frozenset(keys)


class Door:
    """Gives each request an id and asks for the key."""

    def __init__(self, app: Any, keys: Collection[bytes]) -> None:
        self._app = app
        self._keys = tuple(keys)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = "req_" + secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["request-id"] = headers["x-request-id"] = request_id
            await send(message)

        request = Request(scope)
        if scope["path"] not in OPEN and not self._may_enter(request):
            error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
            await error_response(request, error)(scope, receive, send_with_id)
            return
        await self._app(scope, receive, send_with_id)

    def _may_enter(self, request: Request) -> bool:
        if not self._keys:
            return True
        bearer = request.headers.get("authorization", "")
        given = bearer[7:] if bearer[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
        digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
        return sum(hmac.compare_digest(digest, key) for key in self._keys) > 0
