"""Messages: a request from a conversation, a turn from an answer. Thinking blocks are opaque and go back unchanged.

Source: reference of the Anthropic API (messages, extended thinking with tool use).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from overland.agent.text import clean
from overland.agent.turn import Turn, Usage
from overland.agent.wire_openai import broken
from overland.chat import MalformedCall, Message, ToolCall, ToolSpec
from overland.errors import OverlandError

if TYPE_CHECKING:
    from overland.engine import Sampling

VERSION = "2023-06-01"


def address(base_url: str) -> str:
    return f"{base_url}/messages" if base_url.endswith("/v1") else f"{base_url}/v1/messages"


def headers(key: str) -> dict[str, str]:
    return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}


def request(
    model: str,
    conversation: Sequence[Message],
    states: Sequence[Any],
    tools: Sequence[ToolSpec],
    effort: str,
    sampling: Sampling,
    max_tokens: int,
) -> dict[str, Any]:
    """The request's body. `states[i]`, where given, are the content blocks that message i came in."""
    system = "\n\n".join(message.content for message in conversation if message.role == "system")
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "messages": _messages(conversation, states),
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": effort},
    }
    if sampling.temperature != 1.0:  # with thinking the API takes no other temperature than 1
        body["temperature"] = sampling.temperature
    if system:
        body["system"] = system
    if tools:
        empty = {"type": "object", "properties": {}}
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters or empty}
            for tool in tools
        ]
    return body


def _messages(conversation: Sequence[Message], states: Sequence[Any]) -> list[dict[str, Any]]:
    """Roles alternate: the results of one turn's calls, and a user's words after them, are one user message."""
    out: list[dict[str, Any]] = []
    pending: list[str] = []  # ids of calls without a result yet
    for message, state in zip(conversation, states, strict=True):
        if message.role == "system":
            continue
        if message.role == "assistant":
            blocks = state if state is not None else _assistant(message)
            pending = [block["id"] for block in blocks if block.get("type") == "tool_use"]
            out.append({"role": "assistant", "content": blocks})
            continue
        block = _result(message, pending) if message.role == "tool" else {"type": "text", "text": message.content}
        if out and out[-1]["role"] == "user":
            out[-1]["content"].append(block)
        else:
            out.append({"role": "user", "content": [block]})
    return out


def _result(message: Message, pending: list[str]) -> dict[str, Any]:
    """A tool's result; words about a turn that held no readable call have no id and are text."""
    id_ = message.tool_call_id if message.tool_call_id in pending else (pending[0] if pending else None)
    if id_ is None:
        return {"type": "text", "text": message.content}
    pending.remove(id_)
    return {"type": "tool_result", "tool_use_id": id_, "content": message.content}


def _assistant(message: Message) -> list[dict[str, Any]]:
    """A message that did not come from this endpoint. Its reasoning has no signature, and unsigned thinking is refused;
    it is left out rather than turned into visible text, which a model would start to imitate."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": message.content}] if message.content else []
    for number, call in enumerate(message.tool_calls, start=1):
        try:
            given = call.parsed()
        except MalformedCall:
            given = {"malformed_arguments": call.arguments}
        blocks.append({"type": "tool_use", "id": call.id or f"call_{number}", "name": call.name, "input": given})
    return blocks or [{"type": "text", "text": "(empty)"}]


def turn(data: dict[str, Any]) -> Turn:
    """Raises OverlandError where the answer is not a message."""
    blocks = data.get("content")
    if data.get("type") != "message" or not isinstance(blocks, list):
        raise OverlandError(f"the endpoint's answer is no message but {str(data.get('type'))[:40]!r}")
    text, thought, calls = [], [], []
    try:
        for block in blocks:
            kind = block.get("type")
            if kind == "text":
                text.append(block["text"])
            elif kind == "thinking":
                thought.append(block["thinking"])
            elif kind == "tool_use":
                calls.append(ToolCall(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False)))
    except (KeyError, TypeError, AttributeError) as error:
        raise OverlandError(f"the endpoint's answer cannot be read: {type(error).__name__}: {error}") from None
    used = data.get("usage") or {}
    cached = int(used.get("cache_read_input_tokens") or 0)
    fresh = int(used.get("input_tokens") or 0) + int(used.get("cache_creation_input_tokens") or 0)
    details = used.get("output_tokens_details") or {}
    cut = data.get("stop_reason") in ("max_tokens", "model_context_window_exceeded")
    return Turn(
        message=Message("assistant", clean("".join(text)), clean("".join(thought)), tuple(calls)),
        finish_reason="length" if cut else "stop",
        usage=Usage(
            fresh + cached, int(used.get("output_tokens") or 0), int(details.get("thinking_tokens") or 0), cached
        ),
        parse_errors=broken(data),
        continues=not any(one.startswith("ended_by_eos") for one in broken(data)),
        policy_version=data.get("model"),
        provider_state=blocks,
    )


def is_context_error(status: int, text: str) -> bool:
    return status in (400, 413) and ("prompt is too long" in text or "context window" in text)


def context_numbers(text: str) -> tuple[int, int]:
    """(prompt, context) as far as the message names them."""
    numbers = sorted(int(number) for number in re.findall(r"\d{2,}", text))
    return (numbers[-1], numbers[0]) if len(numbers) >= 2 else (0, numbers[0] if numbers else 0)
