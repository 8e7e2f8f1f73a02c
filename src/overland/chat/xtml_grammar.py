"""What an assistant's XTML turn may say, as a grammar: its channels, the calls it may make, the JSON it must answer.

The text is Lark as llguidance reads it: `<|open|>` is that special token, `%json {...}` a JSON Schema, and a regular
expression never matches a special token. Where the turn begins with thinking, the grammar begins behind the <|close|>
that ends it, sampled or forced: thinking is free, and it may be closed in the middle of a character.

A tool's arguments are elements of their own, one a property, in the schema's order. A schema whose arguments cannot be
told one by one (alternatives at its top) is asked for as one raw JSON object, which the format also has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from overland.chat.tools import ToolSpec
from overland.errors import UsageError

MOST_CALLS = 16  # of one turn, when calls are constrained
_TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
ANY = r"(.|\n)*"
_UNTOLD = ("anyOf", "oneOf", "allOf", "if", "not", "patternProperties", "$dynamicRef", "dependentRequired")
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

Answer = Mapping[str, Any]
"""{"json_schema": SCHEMA}, {"json_object": True}, {"regex": TEXT} or {"choice": [TEXT, ...]}: what the response is."""


def turn_grammar(
    tools: Sequence[ToolSpec] = (),
    *,
    calls: str = "none",
    parallel: bool = True,
    answer: Answer | None = None,
    thinking: bool = True,
) -> str:
    """The grammar of one assistant turn after its generation prefix (with thinking: after the <|close|> that ends it).

    <|end_of_msg|> is left out: it is the end.

    calls: "none", "auto" (there may be some) or "required". Raises UsageError where a schema cannot be followed.
    """
    return _Grammar().turn(tools, calls, parallel, answer, thinking)


class _Grammar:
    def __init__(self) -> None:
        self._rules: list[str] = []

    def turn(self, tools: Sequence[ToolSpec], calls: str, parallel: bool, answer: Answer | None, thinking: bool) -> str:
        head = '"think" <|sep|> <|open|> "response" <|sep|>' if thinking else ""
        said = self._answer(answer) if answer is not None else "TEXT"
        tail = '<|close|> "response" <|sep|>'
        if tools and calls != "none":
            arguments = {tool.name: self._rule(self._arguments(tool)) for tool in tools}
            most = MOST_CALLS if parallel else 1
            after = ""
            for index in range(most, 0, -1):
                one = self._rule(
                    " | ".join(
                        f"<|open|> {_quote(f'call tool={_attribute(name)} index={_attribute(str(index))}')} <|sep|> "
                        f'{rule} <|close|> "call" <|sep|>'
                        for name, rule in arguments.items()
                    )
                )
                after = self._rule(f"{one} ({after})?" if after else one)
            if calls == "required":
                tail += f' <|open|> "tools" <|sep|> {after} <|close|> "tools" <|sep|>'
            elif answer is None:
                tail += f' (<|open|> "tools" <|sep|> {after} <|close|> "tools" <|sep|>)?'
            else:  # a turn either answers in the asked form or calls
                called = f'TEXT {tail} <|open|> "tools" <|sep|> {after} <|close|> "tools" <|sep|>'
                said, tail = f"({said} {tail} | {called})", ""
        lines = [f'start: {head} {said} {tail} <|close|> "message" <|sep|>', f"TEXT: /{ANY}/", *self._rules]
        return "\n".join(lines) + "\n"

    def _rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _terminal(self, pattern: str) -> str:
        name = f"T{len(self._rules)}"
        self._rules.append(f"{name}: /{_slashes(pattern)}/")
        return name

    def _answer(self, answer: Answer) -> str:
        if "json_schema" in answer:
            return self._json(answer["json_schema"], answer["json_schema"])
        if "json_object" in answer:
            return self._json({"type": "object"}, {})
        if "regex" in answer:
            return self._terminal(str(answer["regex"]))
        if "choice" in answer:
            return self._rule(" | ".join(_quote(str(one)) for one in answer["choice"]))
        raise UsageError(f"the form of an answer is one of json_schema, json_object, regex, choice; not {list(answer)}")

    def _arguments(self, tool: ToolSpec) -> str:
        schema = _resolve(tool.parameters, tool.parameters)
        if any(key in schema for key in _UNTOLD):
            return f"<|open|> {_quote('json type=' + _attribute('object'))} <|sep|> {self._json(schema, schema)} " + (
                '<|close|> "json" <|sep|>'
            )
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        parts = []
        for key, value in properties.items():
            one = self._argument(_quote_key(key), self._typed(value, tool.parameters))
            parts.append(one if key in required else f"({one})?")
        rest = schema.get("additionalProperties", not properties)
        if rest is not False and not properties:
            key = self._terminal(r'[^"&<|\n]+')
            parts.append(f"({self._argument(key, self._typed(rest if rest is not True else {}, tool.parameters))})*")
        return " ".join(parts) or '""'

    def _argument(self, key: str, typed: list[tuple[str, str]]) -> str:
        return self._rule(
            " | ".join(
                f'<|open|> "argument key=\\"" {key} {_quote(chr(34) + " type=" + _attribute(kind))} <|sep|> {value} '
                '<|close|> "argument" <|sep|>'
                for kind, value in typed
            )
        )

    def _typed(self, schema: Any, root: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(the element's type, what may stand in it) for each type a value may have."""
        if schema is True or not isinstance(schema, Mapping):
            schema = {}
        schema = _resolve(schema, root)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return [one for part in schema[key] for one in self._typed(part, root)]
        if "const" in schema or "enum" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return [(_kind(v), _quote(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False))) for v in values]
        kinds = schema.get("type", _TYPES)
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if "integer" in kinds and "number" in kinds:
            kinds.remove("integer")
        out = []
        for kind in kinds:
            if kind == "string":
                out.append((kind, self._string(schema)))
            elif kind == "boolean":
                out.append((kind, '("true" | "false")'))
            elif kind == "null":
                out.append((kind, '"null"'))
            else:
                shown = "number" if kind == "integer" else kind
                out.append((shown, self._json({**schema, "type": kind}, root)))
        return out

    def _string(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema:
            pattern = str(schema["pattern"])  # JSON Schema's patterns match anywhere unless anchored
            start = "" if pattern.startswith("^") else ANY
            ends = pattern.endswith("$") and not pattern.endswith("\\$")
            inner = pattern.removeprefix("^").removesuffix("$") if ends else pattern.removeprefix("^")
            return self._terminal(f"{start}({inner}){'' if ends else ANY}")
        least, most = schema.get("minLength"), schema.get("maxLength")
        if least is None and most is None:
            return "TEXT"
        return self._terminal(rf"(.|\n){{{least or 0},{'' if most is None else most}}}")

    def _json(self, schema: Any, root: Any) -> str:
        whole = dict(schema) if isinstance(schema, Mapping) else {}
        if isinstance(root, Mapping):
            for key in ("$defs", "definitions"):
                if key in root:
                    whole.setdefault(key, root[key])
        whole["x-guidance"] = _SPACES
        return self._rule(f"%json {json.dumps(whole, ensure_ascii=False)}")


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a local "$ref" points to, with the keywords beside it."""
    for _ in range(32):
        if "$ref" not in schema:
            return schema
        ref = str(schema["$ref"])
        target: Any = root
        for step in ref.removeprefix("#").strip("/").split("/") if ref != "#" else []:
            step = step.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, Mapping) else None
        if not ref.startswith("#") or not isinstance(target, Mapping):
            raise UsageError(f"$ref {ref!r} is not in the schema itself")
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    raise UsageError("the schema's $refs lead in a circle")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _quote(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False) if text else '""'


def _escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _attribute(value: str) -> str:
    return f'"{_escaped(value)}"'


def _quote_key(key: str) -> str:
    return _quote(_escaped(key))


def _slashes(pattern: str) -> str:
    """A pattern between slashes: those of its own escaped, once."""
    out, escaped = [], False
    for char in pattern:
        out.append("\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char)
        escaped = char == "\\" and not escaped
    return "".join(out)
