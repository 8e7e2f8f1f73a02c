"""Tools: a declaration for the model and the function behind it. Nothing a model writes makes one raise.

async def lookup(page: str, section: int = 0) -> str:
    '''Read one section of a page.

    Args:
        page: the page's name
    '''
tool = Tool.of(lookup)
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
import types
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from overland.agent.text import MAX_ECHO, cap, clean
from overland.chat import MalformedCall, ToolCall, ToolSpec
from overland.errors import UsageError

MAX_ARGUMENT_CHARACTERS = 1 << 18
_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True)
class ToolResult:
    """An observation. `code` is None where the tool ran, else why not: "bad_json", "not_an_object", "unknown_tool",
    "schema", "too_long", "timeout" or "tool_error"."""

    text: str
    code: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Tool:
    """A declared function. `run` takes the checked arguments and gives the result as text."""

    spec: ToolSpec
    run: Callable[[dict[str, Any]], Awaitable[str]]
    seconds: float = 60.0
    """Deadline for one call."""
    result_characters: int = 16_000
    """Longer results are cut to head and tail."""
    polling: bool = False
    """True where asking the same again and again is its use: exempt from the stuck detector."""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str | None = None, **options: Any) -> Tool:
        """A tool from a typed function (plain or async): its signature is the schema, its docstring the description.

        Raises UsageError for a parameter without a type or of a type that JSON cannot carry. A plain function runs in
        a worker thread, so that it cannot hold up others.
        """
        spec = spec_of(function, name)

        async def run(arguments: dict[str, Any]) -> str:
            if inspect.iscoroutinefunction(function):
                value = await function(**arguments)
            else:
                value = await asyncio.to_thread(function, **arguments)
            return value if isinstance(value, str) else _as_text(value)

        return cls(spec, run, **options)

    async def call(self, call: ToolCall) -> ToolResult:
        """Check and run one call. Every failure is a result with a code; only cancellation gets out."""
        started = time.monotonic()
        text, code = await self._call(call)
        return ToolResult(cap(clean(text), self.result_characters), code, time.monotonic() - started)

    async def _call(self, call: ToolCall) -> tuple[str, str | None]:
        if len(call.arguments) > MAX_ARGUMENT_CHARACTERS:
            problem = f"{len(call.arguments)} characters of arguments, at most {MAX_ARGUMENT_CHARACTERS} are taken"
            return f"error too_long: {problem}", "too_long"
        try:
            arguments = call.parsed()
            self.spec.check(arguments)
        except MalformedCall as error:
            return cap(f"error {error.code}: {error.message}", MAX_ECHO), error.code
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                return await self.run(arguments), None
        except TimeoutError as error:
            if deadline.expired():
                return f"error timeout: {call.name} was stopped after {self.seconds:g} seconds", "timeout"
            return cap(f"error tool_error: TimeoutError: {error}", MAX_ECHO), "tool_error"
        except Exception as error:
            return cap(f"error tool_error: {type(error).__name__}: {error}", MAX_ECHO), "tool_error"


def _as_text(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


# --- from a signature to a schema -----------------------------------------------------------------------------------


def spec_of(function: Callable[..., Any], name: str | None = None) -> ToolSpec:
    """The declaration of a typed function. See Tool.of."""
    name = name or str(getattr(function, "__name__", "tool"))
    description, documented = _read_docstring(inspect.getdoc(function) or "")
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tool {name}: parameter {key} must be a named one")
        if key not in hints:
            raise UsageError(f"tool {name}: parameter {key} has no type")
        schema = schema_of(hints[key], f"tool {name}: parameter {key}")
        if key in documented:
            schema["description"] = documented[key]
        if parameter.default is parameter.empty:
            required.append(key)
        elif parameter.default is not None:
            schema["default"] = parameter.default
        properties[key] = schema
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name, description, parameters)


def schema_of(hint: Any, where: str) -> dict[str, Any]:
    """JSON Schema of a Python type: scalars, list, dict, Literal, and unions of them."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is Any:
        return {}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return {**schema_of(arguments[0], where), **({"description": arguments[1]} if _is_text(arguments[1]) else {})}
    if origin is Literal:
        kinds = {_SCALARS.get(type(value)) for value in arguments}
        return {"enum": list(arguments), **({"type": kinds.pop()} if len(kinds) == 1 else {})}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(argument, where) for argument in arguments]}
    if hint is list or origin is list:
        return {"type": "array", **({"items": schema_of(arguments[0], where)} if arguments else {})}
    if hint is dict or origin is dict:
        return {"type": "object", **({"additionalProperties": schema_of(arguments[1], where)} if arguments else {})}
    raise UsageError(f"{where} has type {hint!r}; valid: str, int, float, bool, list, dict, Literal and unions of them")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """(description, parameter -> what it is) of a docstring whose parameters stand under "Args:"."""
    head, _, rest = text.partition("\nArgs:\n")
    documented: dict[str, str] = {}
    key = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        found = re.match(r"\s{1,8}(\w+)(?: \([^)]*\))?:\s*(.*)", line)
        if found:
            key = found[1]
            documented[key] = found[2]
        elif key and line.strip():
            documented[key] += " " + line.strip()
    return " ".join(head.split()), documented
