"""XTML, Kimi K3's chat format: elements made of special tokens around raw text.

    OPEN(tag, attrs) := <|open|> tag ( ' ' key '="' value '"' )* <|sep|>
    CLOSE(tag)       := <|close|> tag <|sep|>
    message          := OPEN(message, role=..) body CLOSE(message) <|end_of_msg|>
    picture          := <|media_begin|> image WIDTHxHEIGHT <|media_content|> <|media_pad|>+ <|media_end|>
    assistant body   := OPEN(think) .. CLOSE(think) OPEN(response) .. CLOSE(response) [ OPEN(tools) call* CLOSE(tools) ]

Nothing stands between elements. Only attribute values are escaped; bodies are raw, which is safe because a marker is
a token that text cannot produce. Every piece of a tag is a segment of its own, since that fixes the token ids.

Source: Kimi K3's public chat template (reference: architecture.md 11). The loss mask is NeMo's: an assistant's message
from after its opening tag through <|end_of_msg|>.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from overland.chat.effort import EFFORTS
from overland.chat.messages import Message
from overland.chat.parser import ChannelParser
from overland.chat.segments import Encoded, Segment, encode_segments
from overland.chat.template import Fork, Template
from overland.chat.tokenizer import (
    CLOSE,
    END_OF_MSG,
    EOS,
    MEDIA_BEGIN,
    MEDIA_CONTENT,
    MEDIA_END,
    MEDIA_PAD,
    OPEN,
    SEP,
    Tokenizer,
)
from overland.chat.tools import MalformedCall, ToolCall, ToolSpec, sort_keys
from overland.errors import UsageError

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_MORE_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_TOOL_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_RESPONSE_FORMAT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n"


class XTML(Template):
    """Kimi K3's format. Stateless: one instance serves every conversation."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        effort: str | None = None,
        thinking: bool = True,
        generate: bool = True,
        tool_choice: str | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> list[Segment]:
        """Tool declaration, effort, conversation, tool choice, response format, generation prefix: in this order.

        tool_choice: None, "auto", "required" or "none". response_format: OpenAI's json_object or json_schema.
        Without thinking the think channel and the effort are left out. Raises UsageError.
        """
        out: list[Segment] = []
        if tools:
            out += _system("tool-declare", _TOOLS + _declaration(tools))
        if effort is not None and effort not in EFFORTS:
            raise UsageError(f"effort is {effort!r}; valid: {', '.join(EFFORTS)}")
        if thinking and effort is not None:
            out += _system("thinking-effort", _EFFORT.format(effort))
        out += _conversation(messages, (), thinking)
        out += _options(tool_choice, response_format)
        if generate:
            out += _generation_prefix(thinking)
        return out

    def encode(self, segments: Sequence[Segment], tokenizer: Tokenizer) -> Encoded:
        """Ids and the loss mask, segment by segment."""
        return encode_segments(segments, tokenizer)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        tools: Sequence[ToolSpec] = (),
        effort: str | None = None,
        thinking: bool = True,
        generate: bool = True,
        tool_choice: str | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> list[int]:
        """Render and encode."""
        segments = self.render(messages, tools, effort, thinking, generate, tool_choice, response_format)
        return encode_segments(segments, tokenizer).ids

    def stop_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """<|end_of_msg|>, and [EOS], with which a base model ends a document."""
        return (tokenizer.special(END_OF_MSG), tokenizer.special(EOS))

    def bridge(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tokenizer: Tokenizer,
        thinking: bool = True,
        calls: Sequence[ToolCall] | None = None,
        tool_choice: str | None = None,
    ) -> list[int] | Fork:
        """previous_ids + new messages + generation prefix; see Template.bridge."""
        end = tokenizer.special(END_OF_MSG)
        if not previous_ids or previous_ids[-1] != end:
            return Fork("the previous ids do not end with <|end_of_msg|>: the last turn was cut")
        if any(message.role == "assistant" for message in new_messages):
            return Fork("the new messages hold an assistant turn that is not among the previous ids")
        turn = _last_assistant_turn(previous_ids, tokenizer)
        if turn is None:
            return Fork("the previous ids do not end with an assistant turn")
        if calls is None and any(message.role == "tool" for message in new_messages):
            parser = ChannelParser(tokenizer, start="between")
            parser.feed(turn)
            calls = parser.finish().tool_calls
        out = _conversation(new_messages, tuple(calls or ()), thinking)
        out += _options(tool_choice, None)
        out += _generation_prefix(thinking)
        return [*previous_ids, *encode_segments(out, tokenizer).ids]

    def parser(self, tokenizer: Tokenizer, thinking: bool = True, call_prefix: str = "call_") -> ChannelParser:
        """A parser for what follows the generation prefix. Calls get the ids call_prefix + 1, 2, ..."""
        return ChannelParser(tokenizer, start="think" if thinking else "response", call_prefix=call_prefix)

    def think_close_ids(self, tokenizer: Tokenizer) -> list[int]:
        """CLOSE(think) OPEN(response)."""
        return encode_segments([*close_tag("think"), *open_tag("response")], tokenizer).ids


# --- elements -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def open_tag(tag: str, attributes: tuple[tuple[str, str], ...] = (), trained: bool = False) -> tuple[Segment, ...]:
    """OPEN(tag, attributes). Kept: the same few dozen tags make up most of every prompt."""
    texts = [tag]
    for key, value in attributes:
        escaped = value.replace("&", "&amp;").replace('"', "&quot;")
        texts += [f" {key}", '="', escaped, '"']
    inner = [Segment(text, False, trained) for text in texts if text]
    return (Segment(OPEN, True, trained), *inner, Segment(SEP, True, trained))


@lru_cache(maxsize=64)
def close_tag(tag: str, trained: bool = False) -> tuple[Segment, ...]:
    """CLOSE(tag)."""
    return (Segment(CLOSE, True, trained), Segment(tag, False, trained), Segment(SEP, True, trained))


def _text(text: str, trained: bool = False) -> list[Segment]:
    return [Segment(text, False, trained)] if text else []


def _content(message: Message, trained: bool = False) -> list[Segment]:
    """A message's words, and each picture as `image WxH` in the size it came in, with a place for each of its rows."""
    if not message.parts:
        return _text(message.content, trained)
    out: list[Segment] = []
    for part in message.parts:
        if isinstance(part, str):
            out += _text(part, trained)
        else:
            size = Segment(f"image {part.width}x{part.height}")
            places = [Segment(MEDIA_PAD, True)] * part.places
            out += [Segment(MEDIA_BEGIN, True), size, Segment(MEDIA_CONTENT, True), *places, Segment(MEDIA_END, True)]
    return out


def _message(attributes: tuple[tuple[str, str], ...], body: list[Segment], trained: bool = False) -> list[Segment]:
    """A whole message. Its opening tag is given to the model, never learned."""
    end = Segment(END_OF_MSG, True, trained)
    return [*open_tag("message", attributes), *body, *close_tag("message", trained), end]


def _system(kind: str, body: str) -> list[Segment]:
    return _message((("role", "system"), ("type", kind)), _text(body))


def _fenced(json_text: str) -> str:
    return f"```json\n{json_text}\n```"


def _declaration(tools: Sequence[ToolSpec]) -> str:
    return _fenced(f"[{','.join(tool.declaration for tool in tools)}]")


def _generation_prefix(thinking: bool) -> list[Segment]:
    return [*open_tag("message", (("role", "assistant"),)), *open_tag("think" if thinking else "response")]


def _options(tool_choice: str | None, response_format: dict[str, Any] | None) -> list[Segment]:
    """Options of the next turn only. They follow the history, so that its cached prefix stays valid."""
    out: list[Segment] = []
    if tool_choice in _TOOL_CHOICE:
        out += _system("tool-choice", _TOOL_CHOICE[tool_choice])
    elif tool_choice not in (None, "auto"):
        raise UsageError(f"tool_choice is {tool_choice!r}; valid: auto, required, none")
    kind = None if response_format is None else response_format.get("type")
    if kind == "json_object":
        out += _system("response-format", _RESPONSE_FORMAT.format(kind))
    elif kind == "json_schema" and response_format is not None:
        given = response_format.get("json_schema") or {}
        schema = given.get("schema", given)
        compact = json.dumps(sort_keys(schema), ensure_ascii=False, separators=(",", ":"))
        out += _system("response-format", _RESPONSE_FORMAT.format(kind) + _SCHEMA + _fenced(compact))
    elif kind not in (None, "text"):
        raise UsageError(f"response_format.type is {kind!r}; valid: text, json_object, json_schema")
    return out


# --- messages -------------------------------------------------------------------------------------------------------


def _conversation(messages: Sequence[Message], calls: tuple[ToolCall, ...], thinking: bool) -> list[Segment]:
    """Messages in order; `calls` are those of the assistant turn before the first one."""
    out: list[Segment] = []
    for message, tool, index in _place_results(messages, calls):
        if message.role == "assistant":
            out += _assistant(message, thinking)
        elif message.role == "tool":
            attributes = (("role", "tool"), ("tool", tool), ("index", str(index)))
            out += _message(attributes, _content(message))
        elif message.role == "system" and message.tools:
            out += _system("tool-declare", _MORE_TOOLS + _declaration(message.tools))
        else:
            out += _message(_author(message), _content(message))
    return out


def _author(message: Message) -> tuple[tuple[str, str], ...]:
    role = (("role", str(message.role)),)
    return (*role, ("name", message.name)) if message.name else role


def _assistant(message: Message, thinking: bool) -> list[Segment]:
    body: list[Segment] = []
    if thinking:  # present even when empty, and never stripped from old turns
        thought = message.reasoning if message.reasoning.strip() else ""
        body += [*open_tag("think", (), True), *_text(thought, True), *close_tag("think", True)]
    body += [*open_tag("response", (), True), *_content(message, True), *close_tag("response", True)]
    if message.tool_calls:
        body += open_tag("tools", (), True)
        for index, call in enumerate(message.tool_calls, start=1):
            body += _call(call, index)
        body += close_tag("tools", True)
    return _message(_author(message), body, trained=True)


def _call(call: ToolCall, index: int) -> list[Segment]:
    """A call with one typed child per argument, or a single raw `json` child where its text is no JSON object.

    K3 refuses a valid JSON value that is not an object; here it is kept as it was written, because a model that once
    produced it must still be able to go on in that conversation.
    """
    out = [*open_tag("call", (("tool", call.name), ("index", str(index))), True)]
    try:
        children = [(key, _type_of(value), _value_text(value)) for key, value in call.parsed().items()]
    except (MalformedCall, RecursionError):
        out += [*open_tag("json", (("type", "object"),), True), *_text(call.arguments, True), *close_tag("json", True)]
    else:
        for key, kind, text in children:
            out += open_tag("argument", (("key", key), ("type", kind)), True)
            out += [*_text(text, True), *close_tag("argument", True)]
    return [*out, *close_tag("call", True)]


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):  # before int, which a bool also is
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _place_results(messages: Sequence[Message], calls: tuple[ToolCall, ...]) -> Iterator[tuple[Message, str, int]]:
    """Messages with tool results put in the order of their calls: (message, tool name, index from 1).

    A run of results is sorted only if every id in it matches a call of the assistant turn before; the matched call
    then also names the tool. Otherwise the given order stands, and the result's own name, or the call at its place.
    """
    placed = 0
    at = 0
    while at < len(messages):
        message = messages[at]
        if message.role != "tool":
            if message.role == "assistant":
                calls, placed = message.tool_calls, 0
            yield message, "", 0
            at += 1
            continue
        run = []
        while at < len(messages) and messages[at].role == "tool":
            run.append(messages[at])
            at += 1
        position = {call.id: place for place, call in reversed(list(enumerate(calls))) if call.id}
        matched = all(result.tool_call_id in position for result in run)
        if matched:
            run.sort(key=lambda result: position[result.tool_call_id or ""])
        for result in run:
            if matched:
                tool = calls[position[result.tool_call_id or ""]].name
            elif result.name:
                tool = result.name
            elif placed < len(calls):
                tool = calls[placed].name
            else:
                raise UsageError(
                    f"messages: the tool result with tool_call_id {result.tool_call_id!r} belongs to no call; "
                    "give it the id of a call of the assistant message before it, or a name"
                )
            placed += 1
            yield result, tool, placed


def _last_assistant_turn(ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int] | None:
    """Ids of the last message after its opening tag, or None if it is not an assistant's. `ids` end with its end."""
    end, sep = tokenizer.special(END_OF_MSG), tokenizer.special(SEP)
    start = len(ids) - 1
    while start > 0 and ids[start - 1] != end:
        start -= 1
    last = ids[start:]
    head = next((place for place, id_ in enumerate(last) if id_ == sep), None)
    if head is None or last[0] != tokenizer.special(OPEN):
        return None
    tag = tokenizer.decode(last[1:head])
    return last[head + 1 :] if tag.startswith('message role="assistant"') else None
