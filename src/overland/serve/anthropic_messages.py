"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API, whole and streamed.

A tool's input is sent in one delta when its call is complete: an unfinished object that a client's partial JSON
reader would complete by itself must never be run. Arguments that are no JSON object reach the client as
``{"malformed_arguments": TEXT}`` and come back to the model as they were.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from overland.chat import MalformedCall, Message, Part, ToolCall
from overland.chat.images import text_of
from overland.serve.anthropic_schema import Block, CountRequest, InputMessage, MessagesRequest, ResultBlock, Thinking
from overland.serve.choice import Answer, Event
from overland.serve.conversation import (
    Placed,
    check_answer,
    check_conversation,
    check_stops,
    check_tools,
    choose_tools,
)
from overland.serve.errors import as_api_error, bad_request, error_body
from overland.serve.exploring import KEEP_ALIVE
from overland.serve.generation import Ask, Generator, Plan
from overland.serve.pictures import RequestPictures
from overland.serve.signature import ThinkingSigner
from overland.serve.streaming import sse

STOP = {"stop": "end_turn", "stop_string": "stop_sequence", "length": "max_tokens", "calls": "tool_use"}
MALFORMED = "malformed_arguments"
# Claude Code puts a nonce of its own in front of the system prompt, which would defeat every prefix cache.
NONCE = "x-anthropic-billing-header:"


def read_request(body: CountRequest, generator: Generator, signer: ThinkingSigner) -> Ask:
    """The request in neutral terms. Raises a 400 that names the field."""
    placed = [Placed("system", Message("system", text)) for text in _system(body)]
    pictures = RequestPictures(generator)
    for place, message in enumerate(body.messages):
        placed += _messages(f"messages.{place}", message, generator, signer, pictures)
    tools = check_tools(
        (f"tools.{i}.input_schema", tool.name, tool.description, tool.input_schema)
        for i, tool in enumerate(body.tools or [])
    )
    wanted, choice = None, "auto"
    if body.tool_choice is not None:
        choice = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}[body.tool_choice.type]
        if body.tool_choice.type == "tool":
            if not body.tool_choice.name:
                raise bad_request("tool_choice.name", "the type tool needs the name of one")
            wanted = [body.tool_choice.name]
    named = choose_tools("tool_choice", tools, choice, wanted)
    effort, budget = _effort(body)
    answer, shown = _form(body)
    ask = Ask(
        messages=check_conversation(placed),
        tools=tools,
        tool_choice=choice,
        parallel_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        effort=effort,
        think_budget=budget,
        call_prefix="toolu_",
        named=named,
        strict=any(tool.strict for tool in body.tools or []),
        answer=answer,
        answer_field="output_config.format",
        response_format=shown,
        pictures=pictures.by_hash,
    )
    if not isinstance(body, MessagesRequest):
        return ask
    if budget is not None and budget >= body.max_tokens:
        raise bad_request("thinking.budget_tokens", f"{budget} must be less than max_tokens ({body.max_tokens})")
    sampling = {
        "max_tokens": body.max_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_k": body.top_k or 0,
        "seed": body.seed,
        "stops": check_stops("stop_sequences", body.stop_sequences),
        "paths": None if body.explore is None else body.explore.paths,
        "pick": None if body.explore is None else body.explore.pick,
    }
    return Ask(**{**ask.__dict__, **sampling})


def _system(body: CountRequest) -> list[str]:
    texts = [body.system] if isinstance(body.system, str) else [block.text for block in body.system or []]
    kept = [text for text in texts if text and not text.startswith(NONCE)]
    return ["\n\n".join(kept)] if kept else []


def _effort(body: CountRequest) -> tuple[str | None, int | None]:
    """(effort, thinking budget). Without `thinking` the server's default holds; disabled means no thinking."""
    effort = body.output_config.effort if body.output_config is not None else None
    thinking = body.thinking
    if thinking is None:
        return effort, None
    if thinking.type == "disabled":
        return "none", None
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise bad_request("thinking.budget_tokens", "the type enabled needs a budget; or use the type adaptive")
    return effort, thinking.budget_tokens if thinking.type == "enabled" else None


def _form(body: CountRequest) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The form of the response and the same as the template shows it."""
    form = body.output_config.format if body.output_config is not None else None
    if form is None:
        return None, None
    answer = check_answer("output_config.format.schema", {"json_schema": form.schema_})
    return answer, {"type": "json_schema", "json_schema": {"schema": form.schema_}}


def _messages(
    field: str, one: InputMessage, generator: Generator, signer: ThinkingSigner, pictures: RequestPictures
) -> list[Placed]:
    """One message of theirs is several of ours: results first, each a message of its own, then the text."""
    blocks = [Block(type="text", text=one.content)] if isinstance(one.content, str) else one.content
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Placed] = []
    for place, block in enumerate(blocks):
        where = f"{field}.content.{place}"
        _allowed(where, one.role, block)
        if block.type in ("text", "image"):
            parts.append(_part(where, block, pictures))
        elif block.type == "thinking":
            thoughts.append(_need(where, "thinking", block.thinking))
            meters = generator.metrics
            meters.count(meters.signatures, signer.check(thoughts[-1], block.signature))
        elif block.type == "tool_use":
            call_id, name = _need(where, "id", block.id), _need(where, "name", block.name)
            calls.append(ToolCall(call_id, name, _arguments(block.input or {})))
        elif block.type == "tool_result":
            content = block.content or ""
            found = (
                [content]
                if isinstance(content, str)
                else [_part(f"{where}.content.{i}", part, pictures) for i, part in enumerate(content)]
            )
            call_id = _need(where, "tool_use_id", block.tool_use_id)
            results.append(Placed(where, Message.of_parts("tool", found, tool_call_id=call_id)))
    if one.role == "assistant":
        return [Placed(field, Message("assistant", text_of(parts), "".join(thoughts), tuple(calls)))]
    said = [Placed(field, Message.of_parts(one.role, parts))] if parts or not results else []
    return results + said


def _part(where: str, block: Block | ResultBlock, pictures: RequestPictures) -> Part:
    """The words or the picture of a block."""
    if block.type == "text":
        return _need(where, "text", block.text)
    source = block.source
    if source is None:
        raise bad_request(f"{where}.source", "this block needs it")
    if source.type == "url":
        raise bad_request(f"{where}.source.type", "url: this server fetches no pictures; valid: base64")
    data = _need(f"{where}.source", "data", source.data)
    return pictures.from_base64(f"{where}.source", _need(f"{where}.source", "media_type", source.media_type), data)


def _allowed(where: str, role: str, block: Block) -> None:
    kinds = {
        "user": ("text", "image", "tool_result"),
        "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
        "system": ("text",),
    }[role]
    if block.type not in kinds:
        raise bad_request(f"{where}.type", f"{block.type} cannot stand in a {role} message; valid: {', '.join(kinds)}")


def _need(where: str, name: str, value: str | None) -> str:
    if value is None:
        raise bad_request(f"{where}.{name}", "this block needs it")
    return value


def _arguments(given: dict[str, Any]) -> str:
    if set(given) == {MALFORMED} and isinstance(given[MALFORMED], str):
        return str(given[MALFORMED])
    return json.dumps(given, ensure_ascii=False)


def tool_input(call: ToolCall) -> dict[str, Any]:
    """The arguments as the object that this API wants."""
    try:
        return call.parsed()
    except MalformedCall:
        return {MALFORMED: call.arguments}


class MessageAnswer:
    """One request's answer, in either form."""

    def __init__(
        self, generator: Generator, plan: Plan, body: MessagesRequest, signer: ThinkingSigner, request_id: str
    ) -> None:
        self._choice = generator.choices(plan)[0]
        self._body = body
        self._signer = signer
        self._request_id = request_id
        self._id = "msg_" + secrets.token_hex(12)
        self._shows_thinking = _display(body.thinking) != "omitted"

    async def whole(self) -> dict[str, Any]:
        """The message object."""
        async with aclosing(self._choice.deltas()) as deltas:
            async for _ in deltas:
                pass
        answer = self._choice.answer
        content: list[dict[str, Any]] = []
        if answer.reasoning:
            shown = answer.reasoning if self._shows_thinking else ""
            content.append({"type": "thinking", "thinking": shown, "signature": self._signer.sign(shown)})
        if answer.content:
            content.append({"type": "text", "text": answer.content})
        for call in answer.calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": tool_input(call)})
        stop = {**_stop(answer), "stop_details": None}
        return {**self._message(content), **stop, **answer.extras, "usage": _usage(answer)}

    async def stream(self) -> AsyncGenerator[bytes]:
        """message_start, the blocks one after another, message_delta, message_stop; an error event if it fails."""
        blocks = _Blocks(self._signer, self._shows_thinking)
        answer = self._choice.answer
        started = told = False
        try:
            async with aclosing(self._choice.deltas()) as deltas:
                async for delta in deltas:
                    if not started:  # only now are the cached tokens known, which its usage must show
                        started = True
                        message = {**self._message([]), "stop_reason": None, "stop_sequence": None}
                        yield _event(
                            "message_start", message={**message, "usage": {**_usage(answer), "output_tokens": 0}}
                        )
                    if delta is KEEP_ALIVE or not told:
                        yield _event("ping")
                        told = True
                    for event in delta.events:
                        for made in blocks.feed(event):
                            yield made
            for made in blocks.close():
                yield made
            stop = {**_stop(answer), "stop_details": None}
            yield _event("message_delta", delta=stop, **answer.extras, usage=_usage(answer))
            yield _event("message_stop")
        except Exception as error:
            failure = as_api_error(error, self._request_id)
            yield sse(error_body(failure, anthropic=True, request_id=self._request_id), "error")

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._body.model}
        return {**head, "content": content}


class _Blocks:
    """Events of an answer as content blocks; one is open at a time."""

    def __init__(self, signer: ThinkingSigner, shows_thinking: bool) -> None:
        self._signer = signer
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open = ""
        self._text: list[str] = []  # of the open block: shown thinking, or arguments not yet sent

    def feed(self, event: Event) -> list[bytes]:
        if event.kind == "think":
            made = self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if self._shows_thinking:
                self._text.append(event.text)
                made.append(self._delta({"type": "thinking_delta", "thinking": event.text}))
            return made
        if event.kind == "text":
            made = self._enter("text", {"type": "text", "text": ""})
            return [*made, self._delta({"type": "text_delta", "text": event.text})]
        if event.kind == "call_start":
            block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            return [*self.close(), *self._enter("tool_use", block)]
        if event.kind == "call_args":
            self._text.append(event.text)
            return []
        return self.close()

    def close(self) -> list[bytes]:
        """Ends the open block, if any: a thinking block with its signature, a call with its input."""
        if not self._open:
            return []
        made = []
        text = "".join(self._text)
        if self._open == "thinking":
            made.append(self._delta({"type": "signature_delta", "signature": self._signer.sign(text)}))
        elif self._open == "tool_use":
            given = json.dumps(tool_input(ToolCall("", "", text)), ensure_ascii=False)
            made.append(self._delta({"type": "input_json_delta", "partial_json": given}))
        self._open, self._text = "", []
        return [*made, _event("content_block_stop", index=self._index)]

    def _enter(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        if self._open == kind:
            return []
        made = self.close()
        self._open = kind
        self._index += 1
        return [*made, _event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _display(thinking: Thinking | None) -> str | None:
    return thinking.display if thinking is not None else None


def _stop(answer: Answer) -> dict[str, Any]:
    return {"stop_reason": STOP[answer.finish], "stop_sequence": answer.stop_text}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.tokens,
        "output_tokens_details": {"thinking_tokens": answer.thought},
        "service_tier": "standard",
    }
