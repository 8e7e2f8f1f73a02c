"""Tools as a model sees them: what is declared, what is called, and whether a call fits its declaration."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from overland.errors import OverlandError, UsageError


class MalformedCall(OverlandError):
    """A tool call that cannot be run. Its text is meant to go back to the model as an observation.

    code: "bad_json" | "not_an_object" | "unknown_tool" | "schema".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is out of range")
    return value


def strict_json(text: str) -> Any:
    """Parse JSON as the standard has it: no NaN, no infinities, no overflowing numbers. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments object of a call; blank text means no arguments. Raises MalformedCall."""
    if not text.strip():
        return {}
    try:
        value = strict_json(text)
    except ValueError as error:
        raise MalformedCall("bad_json", f"the arguments are not valid JSON ({error})") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise MalformedCall("not_an_object", f"the arguments must be a JSON object of named values, not {kind}")
    return value


@dataclass(frozen=True)
class ToolCall:
    """One call. `arguments` is the JSON text as it was produced, valid or not: nothing is repaired silently."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict. Raises MalformedCall ("bad_json" or "not_an_object")."""
        return parse_arguments(self.arguments)

    def to_openai(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> ToolCall:
        """Reads a Chat Completions call; arguments may be JSON text or, as some clients send them, an object."""
        function = data.get("function", data)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise UsageError("tool_calls[].function.name is missing: give the name of the tool that was called")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return cls(id=str(data.get("id") or ""), name=function["name"], arguments=arguments)


def sort_keys(value: Any) -> Any:
    """The same JSON value with the keys of every object sorted, at every depth."""
    if isinstance(value, Mapping):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [sort_keys(item) for item in value]
    return value


@dataclass(frozen=True)
class ToolSpec:
    """A tool's declaration: its name, what it does, and a JSON Schema (an object schema) of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def to_openai(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        if self.parameters:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> ToolSpec:
        function = data.get("function", data)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise UsageError("tools[].function.name is missing: give the tool a name")
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise UsageError(f"tools[{function['name']}].parameters must be a JSON Schema object, not {parameters!r}")
        return cls(function["name"], str(function.get("description") or ""), dict(parameters))

    @cached_property
    def declaration(self) -> str:
        """Compact JSON with sorted keys, as the template shows it. Computed once: prompts repeat it at every turn."""
        return json.dumps(sort_keys(self.to_openai()), ensure_ascii=False, separators=(",", ":"))

    @cached_property
    def _validator(self) -> Any:
        import jsonschema
        import referencing

        kind = jsonschema.validators.validator_for(self.parameters, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self.parameters)
        except jsonschema.SchemaError as error:
            raise UsageError(f"tools[{self.name}].parameters is not a valid JSON Schema: {error.message}") from None
        # An empty registry: a "$ref" to an address must never make the checker open a connection.
        return kind(self.parameters, registry=referencing.Registry())

    def check(self, arguments: dict[str, Any]) -> None:
        """Raises MalformedCall("schema") that names the argument, or UsageError where the schema itself is broken."""
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        try:
            error = best_match(self._validator.iter_errors(arguments))
        except Unresolvable as unresolved:
            raise UsageError(f"tools[{self.name}].parameters refers to something not in it: {unresolved}") from None
        if error is not None:
            where = ".".join(str(step) for step in error.absolute_path)
            raise MalformedCall("schema", f"{self.name}{f' argument {where}' if where else ''}: {error.message}")


def check_call(call: ToolCall, tools: Iterable[ToolSpec]) -> dict[str, Any]:
    """The arguments of a call that may be run: the tool exists, the text parses, the schema holds.

    Raises MalformedCall with code "unknown_tool", "bad_json", "not_an_object" or "schema".
    """
    known = {tool.name: tool for tool in tools}
    if call.name not in known:
        near = difflib.get_close_matches(call.name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else f" Tools: {', '.join(known) or 'none'}."
        raise MalformedCall("unknown_tool", f"there is no tool named {call.name!r}.{hint}")
    arguments = call.parsed()
    known[call.name].check(arguments)
    return arguments
