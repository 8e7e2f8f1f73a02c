"""A resolved recipe as TOML: every default written out, every field's documentation as a comment above it."""

from __future__ import annotations

import json
import math
import re
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_toml(recipe: BaseModel) -> str:
    """Text that `load_recipe` reads back to an equal recipe. None is written as "none"."""
    lines = _comment((type(recipe).__doc__ or "").strip().split("\n\n")[0])
    if lines:
        lines.append("")
    lines += _body(recipe, [])
    return "\n".join(lines).strip() + "\n"


def _body(section: BaseModel | dict[str, Any], path: list[str]) -> list[str]:
    """Plain fields first, then tables: in TOML everything after a table header belongs to that table."""
    items = _items(section)
    lines: list[str] = []
    for name, value, about in items:
        if not _is_table(value) and not _is_table_array(value):
            lines += _comment(about)
            lines.append(f"{_key(name)} = {_value(value)}")
    for name, value, about in items:
        inner = [*path, name]
        header = ".".join(_key(part) for part in inner)
        if _is_table(value):
            body = _body(value, inner)
            bare = isinstance(value, dict) and all(_is_table(item) for item in value.values())  # needs no header
            lines += ["", *_comment(about or _about(value)), *([] if bare else [f"[{header}]"])]
            lines += body[1:] if bare and not about else body
        elif _is_table_array(value):
            lines += ["", *_comment(about)]
            for number, item in enumerate(value):
                lines += [*([""] if number else []), f"[[{header}]]", *_body(item, inner)]
    return lines


def _items(section: BaseModel | dict[str, Any]) -> list[tuple[str, Any, str]]:
    if isinstance(section, BaseModel):
        fields = type(section).model_fields
        return [(name, getattr(section, name), field.description or "") for name, field in fields.items()]
    return [(str(name), value, "") for name, value in section.items()]


def _is_table(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return True
    return isinstance(value, dict) and bool(value) and all(isinstance(v, (BaseModel, dict)) for v in value.values())


def _is_table_array(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, BaseModel) for item in value)


def _about(value: Any) -> str:
    own = type(value).__doc__ if isinstance(value, BaseModel) else None
    return (own or "").strip().split("\n\n")[0]


def _comment(text: str) -> list[str]:
    flat = " ".join(text.split())
    return [f"# {line}" for line in textwrap.wrap(flat, 110)]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, Enum):
        return _value(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, (str, Path)):
        return _text(str(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, BaseModel):
        return "{ " + ", ".join(f"{_key(name)} = {_value(item)}" for name, item, _ in _items(value)) + " }"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(str(name))} = {_value(item)}" for name, item in value.items()) + " }"
    raise TypeError(f"a recipe cannot hold {type(value).__name__}")
