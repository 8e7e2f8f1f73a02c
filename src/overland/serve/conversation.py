"""A client's conversation, checked: what both APIs ask of messages and tools before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
from jsonschema.validators import Draft202012Validator, validator_for

from overland.chat import Message, ToolSpec
from overland.serve.errors import bad_request

MAX_STOPS = 16


@dataclass(frozen=True)
class Placed:
    """A message and the field of the request it came from, for errors."""

    field: str
    message: Message


def check_conversation(placed: Sequence[Placed]) -> list[Message]:
    """Messages in the template's terms: results named, in the order of the calls they answer.

    Raises a 400 for a tool result that answers no call of the assistant turn before it, two calls or two results
    with one id, and a conversation that ends with the assistant's own turn.
    """
    messages: list[Message] = []
    calls: dict[str, tuple[int, str]] = {}  # of the last assistant turn: id -> place, name
    results: dict[str, Message] = {}
    for item in placed:
        message = item.message
        if message.role == "tool":
            key = message.tool_call_id or ""
            if key not in calls:
                raise bad_request(
                    item.field, f"{key!r} answers no call of the assistant message before it", "orphan_tool_result"
                )
            if key in results:
                raise bad_request(item.field, f"a second result for tool call {key!r}", "duplicate_tool_result")
            results[key] = replace(message, name=calls[key][1])
            continue
        messages += _in_call_order(results, calls)
        results = {}
        if message.role == "assistant":
            calls = {}
            for place, call in enumerate(message.tool_calls):
                if call.id in calls:
                    raise bad_request(item.field, f"two tool calls have the id {call.id!r}", "duplicate_tool_call_id")
                calls[call.id] = (place, call.name)
        else:
            calls = {}
        messages.append(message)
    messages += _in_call_order(results, calls)
    if messages[-1].role == "assistant":
        raise bad_request(
            placed[-1].field, "the last message is the assistant's; end with a user message or a tool result"
        )
    return messages


def _in_call_order(results: dict[str, Message], calls: dict[str, tuple[int, str]]) -> list[Message]:
    return [results[key] for key in sorted(results, key=lambda key: calls[key][0])]


def check_tools(tools: Iterable[tuple[str, str, str | None, dict[str, Any] | None]]) -> tuple[ToolSpec, ...]:
    """Tools from (field, name, description, schema). A 400 names a schema that is none and a name used twice."""
    specs: dict[str, ToolSpec] = {}
    for field, name, description, schema in tools:
        if name in specs:
            raise bad_request(field, f"two tools are named {name!r}", "duplicate_tool_name")
        parameters = {"type": "object", "properties": {}} if schema is None else schema
        try:
            validator_for(parameters, default=Draft202012Validator).check_schema(parameters)
        except jsonschema.SchemaError as error:
            where = "".join(f".{part}" for part in error.absolute_path)
            raise bad_request(field + where, f"not a JSON Schema: {error.message}", "invalid_tool_schema") from None
        except RecursionError:
            raise bad_request(field, "not a JSON Schema: nested too deeply", "invalid_tool_schema") from None
        if parameters.get("type", "object") != "object":
            raise bad_request(f"{field}.type", "a tool's arguments are an object", "invalid_tool_schema")
        specs[name] = ToolSpec(name=name, description=description or "", parameters=parameters)
    return tuple(specs.values())


def choose_tools(
    field: str, tools: tuple[ToolSpec, ...], choice: str, named: Iterable[str] | None = None
) -> frozenset[str] | None:
    """The only tools that may be called, None for all. A 400 where a call is required and impossible.

    The model is shown all tools whatever is chosen, so that a choice does not change the beginning of the prompt.
    """
    if choice not in ("none", "auto") and not tools:
        raise bad_request(field, "a tool call is required, but the request has no tools")
    if named is None:
        return None
    known = {tool.name for tool in tools}
    for name in (chosen := list(named)):
        if name not in known:
            raise bad_request(field, f"there is no tool named {name!r}")
    return frozenset(chosen)


def check_answer(field: str, form: dict[str, Any] | None) -> dict[str, Any] | None:
    """The schema of a json_schema answer, checked. A 400 names what is no schema."""
    if form is None or "json_schema" not in form:
        return form
    schema = form["json_schema"]
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "".join(f".{part}" for part in error.absolute_path)
        raise bad_request(field + where, f"not a JSON Schema: {error.message}", "invalid_json_schema") from None
    except RecursionError:
        raise bad_request(field, "not a JSON Schema: nested too deeply", "invalid_json_schema") from None
    return form


def check_bias(field: str, bias: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Biases by token id, -100 to 100. A 400 names an id that is none."""
    pairs = []
    for key, value in (bias or {}).items():
        if not key.isdecimal() or int(key) >= vocab_size:
            raise bad_request(field, f"{key!r} is no token id; valid: 0 to {vocab_size - 1}")
        if not -100 <= value <= 100:
            raise bad_request(field, f"the bias of {key} is {value}; valid: -100 to 100")
        pairs.append((int(key), float(value)))
    return tuple(pairs)


def check_stops(field: str, stops: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings, at most sixteen and none of them empty."""
    texts = [stops] if isinstance(stops, str) else stops or []
    if len(texts) > MAX_STOPS:
        raise bad_request(field, f"{len(texts)} stop strings; at most {MAX_STOPS}")
    if any(not text for text in texts):
        raise bad_request(field, "a stop string is empty")
    return tuple(texts)
