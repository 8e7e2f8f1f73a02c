"""The application: routes, authentication, limits. Every answer, good or bad, is in the form of the API asked."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from overland.chat import Template, Tokenizer
from overland.engine import AsyncEngine
from overland.model.vision.preprocess import Preprocessing
from overland.serve import anthropic_messages, openai_chat, responses_routes, trainers
from overland.serve.answering import known_model, plan_headers, read, respond, stamped
from overland.serve.anthropic_schema import CountRequest, MessagesRequest
from overland.serve.body import read_body
from overland.serve.completions import CompletionAnswer, check_ids
from overland.serve.completions_schema import CompletionRequest, DetokenizeRequest, GenerateRequest, TokenizeRequest
from overland.serve.conversation_log import ConversationLog, Redaction
from overland.serve.door import Door, known_keys
from overland.serve.errors import ApiError, as_api_error, bad_request, error_response, is_anthropic
from overland.serve.generation import Generator
from overland.serve.log_sink import open_sink
from overland.serve.metrics import Metrics
from overland.serve.openai_schema import ChatRequest, ChatTokensRequest
from overland.serve.openapi import describe
from overland.serve.responses_schema import ResponsesRequest
from overland.serve.settings import ServeSection
from overland.serve.signature import ThinkingSigner

_YES, _NO = {"supported": True}, {"supported": False}
CAPABILITIES = {  # what Anthropic's clients ask of a model
    "batch": _NO,
    "citations": _NO,
    "code_execution": _NO,
    "context_management": _NO,
    "effort": {**_YES, "low": _YES, "medium": _YES, "high": _YES, "xhigh": _YES, "max": _YES},
    "pdf_input": _NO,
    "server_tools": _NO,
    "structured_outputs": _YES,
    "thinking": {
        **_YES,
        "types": {"adaptive": _YES, "between_tools": _YES, "disabled": _YES, "enabled": _YES},
    },
}


BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/chat/completions/tokens": ChatTokensRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/inference/v1/generate": GenerateRequest,
}


def create_app(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    template: Template,
    *,
    model_name: str,
    settings: ServeSection | None = None,
    preprocessing: Preprocessing | None = None,
) -> FastAPI:
    """An OpenAI- and Anthropic-compatible API over one engine.

    `preprocessing`: how pictures become a model's input; None where it takes none.
    The API key, if any, is read from the environment variable `settings.api_key_env` names, here and only here.
    `app.state.generator` gives tests and the lifecycle access to what is in flight.
    """
    settings = settings or ServeSection()
    metrics = Metrics(model_name)
    generator = Generator(engine, tokenizer, template, metrics, settings, preprocessing)
    generator.log = _open_log(settings, model_name)
    signer = ThinkingSigner()
    started = int(time.time())
    app = FastAPI(title="Overland", docs_url=None, redoc_url=None)
    app.state.generator = generator
    app.add_middleware(Door, keys=known_keys(os.environ.get(settings.api_key_env, ""), settings.api_keys_file))
    _answer_errors(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a new request would be admitted now: 503 while shutting down or full."""
        admission = generator.admission
        state = "draining" if admission.draining else "full" if admission.full else "ready"
        return JSONResponse({"status": state}, status_code=200 if state == "ready" else 503)

    @app.get("/metrics")
    async def meters() -> Response:
        if settings.effort_controller:
            generator.pressure()
        stats: Mapping[str, Any] = {**engine.engine.stats(), **_log_stats(generator.log)}
        return Response(metrics.render(stats, generator.in_flight), media_type=metrics.content_type)

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        card = _model_card(request, model_name, generator.context_length, started, preprocessing is not None)
        if is_anthropic(request):
            return {"data": [card], "has_more": False, "first_id": model_name, "last_id": model_name}
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, Any]:
        known_model(name, model_name)
        return _model_card(request, model_name, generator.context_length, started, preprocessing is not None)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatRequest, settings.max_request_bytes)
        known_model(body.model, model_name)
        plan = await generator.plan(stamped(await read(openai_chat.read_request, body, generator), request, generator))
        answer = openai_chat.ChatAnswer(generator, plan, body, request.state.request_id)
        return await respond(
            request, generator, answer, plan.load, stream=bool(body.stream), headers=plan_headers(plan)
        )

    @app.post("/v1/chat/completions/tokens")
    async def chat_completions_of_tokens(request: Request) -> Response:
        """A chat completion whose prompt is `tokens`, used as they are; the messages are not rendered."""
        body = await read_body(request, ChatTokensRequest, settings.max_request_bytes)
        known_model(body.model, model_name)
        check_ids("tokens", body.tokens, generator, pictures=True)
        ask = stamped(await read(openai_chat.read_request, body, generator), request, generator)
        ask = replace(ask, prompt_ids=tuple(body.tokens))
        plan = await generator.plan(ask)
        answer = openai_chat.ChatAnswer(generator, plan, body, request.state.request_id)
        return await respond(
            request, generator, answer, plan.load, stream=bool(body.stream), headers=plan_headers(plan)
        )

    @app.post("/v1/completions")
    async def completions_(request: Request) -> Response:
        body = await read_body(request, CompletionRequest, settings.max_request_bytes)
        known_model(body.model, model_name)
        if (body.n or 1) > settings.max_choices:
            raise bad_request("n", f"{body.n} choices; at most {settings.max_choices}")
        answer = CompletionAnswer(generator, body, request.state.request_id)
        return await respond(request, generator, answer, answer.load, stream=bool(body.stream))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        """Ids of a text, or of a conversation up to where the assistant goes on."""
        body = await read_body(request, TokenizeRequest, settings.max_request_bytes)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("prompt", "give exactly one of prompt and messages")
        if body.prompt is not None:
            ids = await asyncio.to_thread(tokenizer.encode, body.prompt)
        else:
            fields = body.model_dump(exclude_none=True, exclude={"prompt"})
            chat = ChatRequest.model_validate({**fields, "model": model_name})
            prompt = await generator.prompt(await read(openai_chat.read_request, chat, generator))
            ids = prompt.ids
        return {"count": len(ids), "max_model_len": generator.context_length, "tokens": ids}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        body = await read_body(request, DetokenizeRequest, settings.max_request_bytes)
        if body.tokens:
            check_ids("tokens", body.tokens[: generator.context_length - 1], generator)
            if max(body.tokens) >= tokenizer.vocab_size:
                raise bad_request("tokens", f"{max(body.tokens)} is no token; valid: 0 to {tokenizer.vocab_size - 1}")
        return {"prompt": tokenizer.decode(body.tokens)}

    responses_routes.add_to(app, generator, signer, model_name)
    if settings.trainer_routes:
        trainers.add_to(app, generator, model_name)

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        body = await read_body(request, MessagesRequest, settings.max_request_bytes)
        known_model(body.model, model_name)
        ask = await read(anthropic_messages.read_request, body, generator, signer)
        plan = await generator.plan(stamped(ask, request, generator))
        answer = anthropic_messages.MessageAnswer(generator, plan, body, signer, request.state.request_id)
        return await respond(
            request, generator, answer, plan.load, stream=bool(body.stream), headers=plan_headers(plan)
        )

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> dict[str, int]:
        """Exactly the prompt tokens the same request would have to /v1/messages."""
        body = await read_body(request, CountRequest, settings.max_request_bytes)
        known_model(body.model, model_name)
        prompt = await generator.prompt(await read(anthropic_messages.read_request, body, generator, signer))
        return {"input_tokens": len(prompt.ids)}

    describe(app, BODIES)
    return app


def _log_stats(log: ConversationLog | None) -> dict[str, float]:
    if log is None:
        return {}
    return {"log_written": log.written, "log_dropped": log.dropped, "log_failed": log.failed_puts}


def _open_log(settings: ServeSection, model_name: str) -> ConversationLog | None:
    """The conversation log, where the settings ask for one. Raises UsageError."""
    if not settings.log_to:
        return None
    local = "://" not in settings.log_to
    spool = settings.log_spool or (f"{settings.log_to.rstrip('/')}.spool" if local else ".overland-log-spool")
    return ConversationLog(
        open_sink(settings.log_to, settings.log_endpoint),
        Path(spool),
        model_name,
        redaction=Redaction(settings.log_thinking, not settings.log_personal, tuple(settings.log_redact)),
        batch_seconds=settings.log_batch_seconds,
        retention_days=settings.log_retention_days,
    )


def _model_card(request: Request, name: str, context: int, created: int, images: bool) -> dict[str, Any]:
    if is_anthropic(request):
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created))
        limits = {"max_input_tokens": context - 1, "max_tokens": context - 1, "max_model_len": context}
        head = {"type": "model", "id": name, "display_name": name, "created_at": when, "lifecycle": "active"}
        return {**head, **limits, "capabilities": {**CAPABILITIES, "image_input": _YES if images else _NO}}
    card = {"id": name, "object": "model", "created": created, "owned_by": "overland"}
    return {**card, "max_model_len": context}


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
