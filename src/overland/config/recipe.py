"""A TOML file and overrides -> a checked recipe, or one line that names the field, the value and the fix."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from overland.config.overrides import apply_override, as_data, parse_override
from overland.config.section import RecipeError, element_type, sections_in

R = TypeVar("R", bound=BaseModel)


def load_recipe(cls: type[R], path: str | Path | None, overrides: Sequence[str] = ()) -> R:
    """Read a recipe of class `cls` from a TOML file (None: all defaults) and lay `overrides` (`a.b=3`) over it.

    Raises RecipeError (exit 2) before anything heavy loads.
    """
    name = "defaults" if path is None else Path(path).name
    return resolve_recipe(cls, {} if path is None else _read(Path(path)), overrides, name)


def resolve_recipe(cls: type[R], data: dict[str, Any], overrides: Sequence[str] = (), name: str = "recipe") -> R:
    """The same from raw data. `name` is how errors call the source."""
    data = _over_defaults(cls, data)
    paths: list[tuple[list[str | int], str]] = []
    for text in overrides:
        where, value = parse_override(text)
        apply_override(cls, data, where, value, text)
        paths.append((where, text))
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise RecipeError(_explain(cls, data, error, name, paths)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [f.name for f in path.parent.glob("*.toml")], 1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise RecipeError(f"{path}: there is no such recipe.{hint}") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path}: is not text in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: is not valid TOML: {error}.") from None


def _over_defaults(cls: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Lay a file's tables over default sections, so that `[sft] lr = 1` keeps a recipe's other choices for sft."""
    merged = dict(data)
    for name, given in data.items():
        field = cls.model_fields.get(name)
        if field is not None and not field.is_required():
            merged[name] = _over(field.get_default(call_default_factory=True, validated_data={}), given)
    return merged


def _over(default: Any, given: Any) -> Any:
    """A table over a default section, field by field; anything else, or a section of another type, replaces it."""
    if not (isinstance(given, dict) and isinstance(default, BaseModel)):
        return given
    own_type = getattr(default, "type", None)
    if given.get("type", own_type) != own_type:
        return given
    laid = {name: _over(getattr(default, name, None), value) for name, value in given.items()}
    return {**as_data(default), **laid}


def _explain(
    cls: type[BaseModel], data: Any, error: ValidationError, name: str, paths: list[tuple[list[str | int], str]]
) -> str:
    problems = error.errors(include_url=False)
    first = problems[0]
    where, owner = _locate(cls, data, first["loc"])
    source = next((f"--set {text}" for path, text in paths if path[: len(where)] == where), name)
    label = _dotted(where) or "recipe"
    if first["type"] == "extra_forbidden":
        title = (owner.__name__ if owner else cls.__name__).removesuffix("Section")
        message = f"{source}: {label} is not a field of {title}. {_nearest(str(where[-1]), owner or cls)}"
    elif first["type"] == "missing":
        message = f"{source}: {label} is missing.{_documentation(owner, where)}"
    else:
        expected = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        value = first["input"]
        shown = "" if isinstance(value, (dict, BaseModel)) else f" = {value!r}"
        message = f"{source}: {label}{shown}: {expected}.{_documentation(owner, where)}"
    if len(problems) > 1:
        others = dict.fromkeys(_dotted(_locate(cls, data, p["loc"])[0]) for p in problems[1:])
        others.pop(label, None)
        if others:
            message += f" (Also wrong: {', '.join(others)}.)"
    return message


def _locate(
    cls: type[BaseModel], data: Any, loc: tuple[str | int, ...]
) -> tuple[list[str | int], type[BaseModel] | None]:
    """pydantic's location without its union tags, and the section class that owns the last name."""
    where: list[str | int] = []
    kind: Any = cls
    owner: type[BaseModel] | None = None
    for part in loc:
        classes = sections_in(kind)
        if classes:
            tagged = [c for c in classes if part in (c.__name__, _tag(c))]
            if tagged and len(classes) > 1:  # a union's tag: it chooses the class and is no name in the file
                kind = tagged[0]
                continue
            owner = classes[0]
            where.append(part)
            field = owner.model_fields.get(str(part))
            kind = field.annotation if field else None
        elif element_type(kind) is not None:
            where.append(part)
            kind = element_type(kind)
            owner = None
        data = _step(data, part)
    return where, owner


def _step(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, (list, tuple)) and isinstance(part, int) and part < len(data):
        return data[part]
    return data


def _tag(cls: type[BaseModel]) -> Any:
    field = cls.model_fields.get("type")
    return None if field is None or field.default is PydanticUndefined else field.default


def _nearest(name: str, owner: type[BaseModel]) -> str:
    names = list(owner.model_fields)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else f"Its fields are {', '.join(names)}."


def _documentation(owner: type[BaseModel] | None, where: list[str | int]) -> str:
    field = owner.model_fields.get(str(where[-1])) if owner and where else None
    return f" ({' '.join(field.description.split()).rstrip('.')}.)" if field is not None and field.description else ""


def _dotted(path: list[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
