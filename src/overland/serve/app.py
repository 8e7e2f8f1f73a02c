"""The application: routes, authentication, limits. Every answer, good or bad, is in the form of the API asked."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from overland.chat import Template, Tokenizer
from overland.engine import AsyncEngine
from overland.serve import anthropic_messages, openai_chat
from overland.serve.anthropic_schema import CountRequest, MessagesRequest
from overland.serve.errors import ApiError, as_api_error, error_response, from_validation, is_anthropic
from overland.serve.generation import Generator, Plan
from overland.serve.metrics import Metrics
from overland.serve.openai_schema import ChatRequest
from overland.serve.settings import ServeSection
from overland.serve.signature import ThinkingSigner
from overland.serve.streaming import ClientGone, EventStream, answer_unless_gone

B = TypeVar("B", bound=BaseModel)
MAX_DEPTH = 100  # of a request's JSON; whatever walks a schema or arguments may then recurse


def create_app(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    template: Template,
    *,
    model_name: str,
    settings: ServeSection | None = None,
) -> FastAPI:
    """An OpenAI- and Anthropic-compatible API over one engine.

    The API key, if any, is read from the environment variable `settings.api_key_env` names, here and only here.
    `app.state.generator` gives tests and the lifecycle access to what is in flight.
    """
    settings = settings or ServeSection()
    metrics = Metrics(model_name)
    generator = Generator(engine, tokenizer, template, metrics, settings)
    signer = ThinkingSigner()
    started = int(time.time())
    app = FastAPI(title="Overland", docs_url=None, redoc_url=None)
    app.state.generator = generator
    app.add_middleware(_Door, key=os.environ.get(settings.api_key_env) or None)
    _answer_errors(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a new request would be admitted now: 503 while shutting down or full."""
        full = generator.in_flight >= settings.max_in_flight
        state = "draining" if generator.draining else "full" if full else "ready"
        return JSONResponse({"status": state}, status_code=200 if state == "ready" else 503)

    @app.get("/metrics")
    async def meters() -> Response:
        stats: Mapping[str, Any] = engine.engine.stats()
        return Response(metrics.render(stats, generator.in_flight), media_type=metrics.content_type)

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        card = _model_card(request, model_name, generator.context_length, started)
        if is_anthropic(request):
            return {"data": [card], "has_more": False, "first_id": model_name, "last_id": model_name}
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, Any]:
        _known_model(name, model_name)
        return _model_card(request, model_name, generator.context_length, started)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await _read(request, ChatRequest, settings.max_request_bytes)
        _known_model(body.model, model_name)
        plan = generator.plan(openai_chat.read_request(body, settings))
        answer = openai_chat.ChatAnswer(generator, plan, body, request.state.request_id)
        return await _respond(request, generator, plan, answer, bool(body.stream))

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        body = await _read(request, MessagesRequest, settings.max_request_bytes)
        _known_model(body.model, model_name)
        plan = generator.plan(anthropic_messages.read_request(body, generator, signer))
        answer = anthropic_messages.MessageAnswer(generator, plan, body, signer, request.state.request_id)
        return await _respond(request, generator, plan, answer, bool(body.stream))

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> dict[str, int]:
        """Exactly the prompt tokens the same request would have to /v1/messages."""
        body = await _read(request, CountRequest, settings.max_request_bytes)
        _known_model(body.model, model_name)
        prompt = generator.prompt(anthropic_messages.read_request(body, generator, signer))
        return {"input_tokens": len(prompt.ids)}

    return app


def _model_card(request: Request, name: str, context: int, created: int) -> dict[str, Any]:
    if is_anthropic(request):
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created))
        limits = {"max_input_tokens": context - 1, "max_tokens": context - 1, "max_model_len": context}
        return {"type": "model", "id": name, "display_name": name, "created_at": when, **limits}
    card = {"id": name, "object": "model", "created": created, "owned_by": "overland"}
    return {**card, "max_model_len": context}


def _known_model(asked: str, served: str) -> None:
    if asked != served:
        message = f"model: {asked!r} is not served here; this server has {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


async def _respond(
    request: Request,
    generator: Generator,
    plan: Plan,
    answer: openai_chat.ChatAnswer | anthropic_messages.MessageAnswer,
    stream: bool,
) -> Response:
    """Admits the request and answers it; its place is given back however it ends."""
    leave = generator.admit(plan)
    if stream:
        return EventStream(answer.stream(), _headers(plan), leave)
    try:
        return JSONResponse(await answer_unless_gone(request, answer.whole()), headers=_headers(plan))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    except Exception as error:
        raise as_api_error(error, request.state.request_id) from None
    finally:
        leave()


def _headers(plan: Plan) -> dict[str, str]:
    """The effort and the thinking budget that are really in force."""
    limit = "unlimited" if plan.budget is None else str(plan.budget.limit)
    return {"x-overland-effort": plan.effort, "x-overland-thinking-budget": limit}


async def _read(request: Request, schema: type[B], limit: int) -> B:
    """The body, checked. Raises 413 before reading more than `limit` bytes, 400 for what is no such request."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise ApiError(413, f"the request has {told} bytes; at most {limit} are taken", code="request_too_large")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise ApiError(413, f"the request has more than {limit} bytes", code="request_too_large")
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


class _Door:
    """Gives each request an id and asks for the key. Plain ASGI: it must not stand between a stream and its client."""

    def __init__(self, app: Any, key: str | None) -> None:
        self._app = app
        self._key = key.encode() if key else None

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
        if scope["path"].startswith("/v1/") and not self._may_enter(request):
            error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
            await error_response(request, error)(scope, receive, send_with_id)
            return
        await self._app(scope, receive, send_with_id)

    def _may_enter(self, request: Request) -> bool:
        if self._key is None:
            return True
        bearer = request.headers.get("authorization", "")
        given = bearer[7:] if bearer[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._key)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error_response(request, error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        what = "there is nothing here" if error.status_code == 404 else str(error.detail)
        where = f"{request.method} {request.url.path}"
        return error_response(request, ApiError(error.status_code, f"{where}: {what}", code="not_found"))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return error_response(request, as_api_error(error, request.state.request_id))
