"""How every route answers: the model it must name, its place in the server, its headers, and a client that leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from overland.serve.admission import Load
from overland.serve.errors import ApiError, as_api_error, bad_request
from overland.serve.generation import Ask, Generator, Plan
from overland.serve.streaming import ClientGone, EventStream, answer_unless_gone


class WireAnswer(Protocol):
    """One request's answer in an API's own form."""

    async def whole(self) -> dict[str, Any]: ...

    def stream(self) -> AsyncGenerator[bytes]: ...


def known_model(asked: str, served: str) -> None:
    if asked != served:
        message = f"model: {asked!r} is not served here; this server has {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


async def read(reader: Callable[..., Ask], body: BaseModel, generator: Generator, *rest: Any) -> Ask:
    """`reader(body, generator, *rest)`; in a thread of its own where pictures may have to be decoded."""
    if generator.preprocessing is None:
        return reader(body, generator, *rest)
    return await asyncio.to_thread(reader, body, generator, *rest)


def stamped(ask: Ask, request: Request, generator: Generator) -> Ask:
    """The request with its id and its deadline: the server's, or an earlier one that the client asks for.

    Raises a 400 for an X-Request-Timeout that is no number of seconds.
    """
    limits = [generator.settings.max_seconds] if generator.settings.max_seconds else []
    if (told := request.headers.get("x-request-timeout")) is not None:
        try:
            seconds = float(told)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e9:
            raise bad_request("X-Request-Timeout", f"{told[:40]!r} is no number of seconds above 0")
        limits.append(seconds)
    deadline = time.monotonic() + min(limits) if limits else None
    return replace(ask, request_id=request.state.request_id, deadline=deadline)


async def respond(
    request: Request,
    generator: Generator,
    answer: WireAnswer,
    load: Load,
    *,
    stream: bool = False,
    headers: dict[str, str] | None = None,
) -> Response:
    """Admits the request and answers it; its place is given back however it ends."""
    leave = generator.admission.enter(load)
    if stream:
        return EventStream(answer.stream(), headers or {}, leave)
    try:
        return JSONResponse(await answer_unless_gone(request, answer.whole()), headers=headers)
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    except Exception as error:
        raise as_api_error(error, request.state.request_id) from None
    finally:
        leave()


def plan_headers(plan: Plan) -> dict[str, str]:
    """The effort and the thinking budget that are really in force."""
    limit = "unlimited" if plan.budget is None else str(plan.budget.limit)
    headers = {"x-overland-effort": plan.effort, "x-overland-thinking-budget": limit}
    if plan.paths > 1:
        headers["x-overland-paths"] = str(plan.paths)
    if plan.reduced:
        headers["x-overland-effort-reduced"] = str(plan.reduced)
    return headers
