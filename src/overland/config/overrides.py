"""`section.key=value` overrides, laid over a recipe's raw data and its defaults before anything is checked."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pydantic import BaseModel

from overland.config.section import RecipeError, element_type, sections_in

_EXAMPLE = "Write it as section.key=value, for example sft.steps=200 or domain.0.share=0.5."


def parse_override(text: str) -> tuple[list[str | int], Any]:
    """`a.list.0.b=[1, 2]` or `a.list[0].b=..` -> (["a", "list", 0, "b"], [1, 2]). A value that is no TOML is text."""
    name, equals, value = text.partition("=")
    parts = re.sub(r"\[(\d+)\]", r".\1", name.strip()).split(".")
    if not equals or not all(part.strip() for part in parts):
        raise RecipeError(f"--set {text}: is not an override. {_EXAMPLE}")
    path: list[str | int] = [int(part) if part.isdigit() else part.strip() for part in parts]
    return path, _value(value.strip())


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def apply_override(cls: type[BaseModel], data: dict[str, Any], path: list[str | int], value: Any, label: str) -> None:
    """Set one value in the raw `data` of a `cls`; `label` is the override as written, for errors.

    What the data leaves out is filled in from the defaults on the way, so that setting one field of a default
    section, list or table keeps its other fields.
    """
    here: Any = data
    owner: type[BaseModel] | None = cls
    kind: Any = cls
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(here, list):
            if not isinstance(part, int) or part >= len(here):
                where = _dotted(path[:depth])
                raise RecipeError(f"--set {label}: {where} has {len(here)} entries from 0, there is no {part!r}.")
            key: Any = part
        else:
            key = str(part)
            if key not in here and not last:
                here[key] = _default(owner, key)
        if last:
            here[key] = value
            return
        if owner is not None and key in owner.model_fields:
            kind = owner.model_fields[key].annotation
        elif owner is None:
            kind = element_type(kind)
        else:
            kind = None
        here = here[key]
        if not isinstance(here, (dict, list)):
            where = _dotted(path[: depth + 1])
            raise RecipeError(f"--set {label}: {where} is a single value, it has no field {path[depth + 1]}.")
        found = sections_in(kind)
        owner = _chosen(found, here) if found else None


def _chosen(classes: list[type[BaseModel]], data: Any) -> type[BaseModel]:
    """Of the classes of a union, the one whose `type` the data names."""
    if isinstance(data, dict):
        for cls in classes:
            field = cls.model_fields.get("type")
            if field is not None and field.default == data.get("type"):
                return cls
    return classes[0]


def _default(owner: type[BaseModel] | None, key: str) -> Any:
    """The default of a field as raw data; an empty table where there is none."""
    if owner is None or key not in owner.model_fields:
        return {}
    default = owner.model_fields[key].get_default(call_default_factory=True, validated_data={})
    return as_data(default) if isinstance(default, (BaseModel, dict, list, tuple)) else {}


def as_data(value: Any) -> Any:
    """Plain dicts and lists for a default."""
    if isinstance(value, BaseModel):
        return {name: as_data(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(item) for item in value]
    return value


def _dotted(path: list[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
