"""A Responses request in neutral terms: its items folded into the messages that a template knows.

Items that the model made one after another (reasoning, text, calls) are one assistant turn. Reasoning comes back as
its text, or sealed in `encrypted_content` where a client asked for that; both are the model's own words, unchanged. A
custom tool is a function with one text argument, `input`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from overland.chat import MalformedCall, Message, Part, ToolCall
from overland.chat.images import text_of
from overland.serve.conversation import (
    Placed,
    check_answer,
    check_conversation,
    check_stops,
    check_tools,
    choose_tools,
)
from overland.serve.errors import bad_request
from overland.serve.generation import Ask, Generator
from overland.serve.pictures import RequestPictures
from overland.serve.responses_schema import AllowedResponseTools, Item, ItemPart, NamedTool, ResponsesRequest
from overland.serve.signature import ThinkingSigner

CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def read_request(
    body: ResponsesRequest, generator: Generator, signer: ThinkingSigner, earlier: Sequence[Item], items: Sequence[Item]
) -> Ask:
    """`earlier` are the items of the response it goes on from, `items` the request's own. Raises a 400."""
    placed = [] if body.instructions is None else [Placed("instructions", Message("system", body.instructions))]
    pictures = RequestPictures(generator)
    folded = _Fold(signer, pictures)
    for place, item in enumerate(earlier):
        folded.take(f"previous_response_id.{place}", item)
    for place, item in enumerate(items):
        folded.take(f"input.{place}", item)
    placed += folded.finish()
    if not placed:
        raise bad_request("input", "it is empty; give at least one message")
    tools = check_tools(
        (
            f"tools.{i}.parameters",
            tool.name,
            tool.description,
            tool.parameters if tool.type == "function" else CUSTOM,
        )
        for i, tool in enumerate(body.tools or [])
    )
    choice, named = _tool_choice(body)
    effort = body.reasoning.effort if body.reasoning is not None else None
    answer, shown = _form(body)
    wants_logprobs = "message.output_text.logprobs" in (body.include or [])
    if body.top_logprobs and not wants_logprobs:
        raise bad_request("top_logprobs", "needs include: ['message.output_text.logprobs']")
    return Ask(
        messages=check_conversation(placed),
        tools=tools,
        tool_choice=choice,
        named=choose_tools("tool_choice", tools, choice, named),
        strict=any(tool.strict for tool in body.tools or [] if tool.type == "function"),
        parallel_calls=body.parallel_tool_calls is not False,
        effort=effort,
        max_tokens=body.max_output_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=body.seed,
        stops=check_stops("stop", None),
        answer=answer,
        answer_field="text.format",
        response_format=shown,
        top_logprobs=body.top_logprobs or 0,
        pictures=pictures.by_hash,
        paths=None if body.explore is None else body.explore.paths,
        pick=None if body.explore is None else body.explore.pick,
    )


def _tool_choice(body: ResponsesRequest) -> tuple[str, list[str] | None]:
    if isinstance(body.tool_choice, NamedTool):
        return "required", [body.tool_choice.name]
    if isinstance(body.tool_choice, AllowedResponseTools):
        return body.tool_choice.mode, [tool.name for tool in body.tool_choice.tools]
    return body.tool_choice or "auto", None


def _form(body: ResponsesRequest) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    form = body.text.format if body.text is not None else None
    if form is None or form.type == "text":
        return None, None
    if form.type == "json_object":
        return {"json_object": True}, {"type": "json_object"}
    if form.schema_ is None:
        raise bad_request("text.format.schema", "the type json_schema needs it")
    answer = check_answer("text.format.schema", {"json_schema": form.schema_})
    return answer, {"type": "json_schema", "json_schema": {"schema": form.schema_}}


class _Fold:
    """Items one after another; assistant items are gathered until something else comes."""

    def __init__(self, signer: ThinkingSigner, pictures: RequestPictures) -> None:
        self._signer = signer
        self._pictures = pictures
        self._placed: list[Placed] = []
        self._field = ""
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []

    def take(self, field: str, item: Item) -> None:
        if item.type == "message" and item.role != "assistant":
            self._close()
            if item.role is None:
                raise bad_request(f"{field}.role", "a message needs a role")
            if item.content is None:
                raise bad_request(f"{field}.content", "a message needs content")
            role = "system" if item.role == "developer" else item.role
            parts = _parts(f"{field}.content", item.content, self._pictures if role == "user" else None)
            self._placed.append(Placed(field, Message.of_parts(role, parts)))
        elif item.type in ("function_call_output", "custom_tool_call_output"):
            self._close()
            call_id = _need(field, "call_id", item.call_id)
            parts = _parts(f"{field}.output", _need(field, "output", item.output), self._pictures)
            self._placed.append(Placed(field, Message.of_parts("tool", parts, tool_call_id=call_id)))
        elif item.type == "reasoning":
            if self._texts or self._calls:  # the next turn begins with its thinking
                self._close()
            self._open(field)
            self._thoughts.append(self._reasoning(item))
        elif item.type == "message":
            if self._calls:
                self._close()
            self._open(field)
            self._texts.append(text_of(_parts(f"{field}.content", item.content or "", None)))
        elif item.type in ("function_call", "custom_tool_call"):
            self._open(field)
            name, call_id = _need(field, "name", item.name), _need(field, "call_id", item.call_id)
            if item.type == "custom_tool_call":
                arguments = json.dumps({"input": _need(field, "input", item.input)}, ensure_ascii=False)
            else:
                arguments = _need(field, "arguments", item.arguments)
            self._calls.append(ToolCall(call_id, name, arguments))
        else:
            raise bad_request(f"{field}.id", f"there is no stored item {item.id!r}", "item_not_found")

    def finish(self) -> list[Placed]:
        self._close()
        return self._placed

    def _open(self, field: str) -> None:
        self._field = self._field or field

    def _close(self) -> None:
        if self._field:
            said = Message("assistant", "".join(self._texts), "".join(self._thoughts), tuple(self._calls))
            self._placed.append(Placed(self._field, said))
        self._field, self._thoughts, self._texts, self._calls = "", [], [], []

    def _reasoning(self, item: Item) -> str:
        if isinstance(item.content, list) and item.content:
            return "".join(part.text or "" for part in item.content)
        if item.encrypted_content and (text := self._signer.unseal(item.encrypted_content)) is not None:
            return text
        return "".join(part.text or "" for part in item.summary or [])


def _parts(field: str, content: str | list[ItemPart], pictures: RequestPictures | None) -> list[Part]:
    """The words and pictures of a content; `pictures` is None where none may stand."""
    if isinstance(content, str):
        return [content]
    out: list[Part] = []
    for place, part in enumerate(content):
        where = f"{field}.{place}"
        if part.type == "input_image":
            if pictures is None:
                raise bad_request(where, "an image cannot stand here; valid: user messages and results of calls")
            if part.image_url is None:
                stored = "" if part.file_id is None else " (this server keeps no files)"
                raise bad_request(f"{where}.image_url", f"this part needs it{stored}")
            out.append(pictures.from_url(f"{where}.image_url", part.image_url))
            continue
        name = "refusal" if part.type == "refusal" else "text"
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise bad_request(f"{where}.{name}", "this part needs it")
        out.append(text)
    return out


def _need(field: str, name: str, value: Any) -> Any:
    if value is None:
        raise bad_request(f"{field}.{name}", "this item needs it")
    return value


def custom_input(arguments: str) -> str:
    """The text of a custom tool's call; arguments that are no such object are passed on as they are."""
    try:
        value = ToolCall("", "", arguments).parsed()
    except MalformedCall:
        return arguments
    text = value.get("input")
    return text if isinstance(text, str) and len(value) == 1 else arguments
