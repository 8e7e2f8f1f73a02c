"""A request's body: read up to a limit, parsed as strict JSON, checked against its schema."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from overland.serve.errors import ApiError, from_validation

B = TypeVar("B", bound=BaseModel)
MAX_DEPTH = 100  # of a request's JSON; whatever walks a schema or arguments may then recurse


async def read_body(request: Request, schema: type[B], limit: int, *, empty: bool = False) -> B:
    """The body, checked. Raises 413 before reading more than `limit` bytes, 400 for what is no such request.

    `empty`: no body at all stands for an empty object.
    """
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise ApiError(413, f"the request has {told} bytes; at most {limit} are taken", code="request_too_large")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise ApiError(413, f"the request has more than {limit} bytes", code="request_too_large")
    if empty and not data.strip():
        data = bytearray(b"{}")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ApiError(400, "body: not UTF-8", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "body: JSON nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(400, f"body: not valid JSON: {error}", code="invalid_json") from None
    if _too_deep(value):
        raise ApiError(400, f"body: JSON nested deeper than {MAX_DEPTH}", code="invalid_json")
    if b"\\u" in data:  # half an emoji, cut by a client that counts in UTF-16: no reason to refuse a conversation
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise from_validation(error) from None


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
