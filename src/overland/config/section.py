"""The base of every recipe section."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

from overland.errors import UsageError

RecipeError = UsageError  # a wrong recipe is a wrong argument: nothing was started, exit 2


class Section(BaseModel):
    """A group of options that one room owns. Unknown names are refused; a docstring under a field documents it.

    TOML has no null: the text "none" stands for None in every field that may be None.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {name for name, field in cls.model_fields.items() if allows_none(field.annotation)}
        return {name: _none_inside(value) if name in optional else value for name, value in data.items()}


def allows_none(annotation: Any) -> bool:
    """Whether None may stand anywhere in a value of this type (`int | None`, `dict[str, int | None]`)."""
    if annotation is type(None):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return False  # a nested section reads its own fields
    return any(allows_none(part) for part in get_args(annotation))


def _none_inside(value: Any) -> Any:
    if value == "none":
        return None
    if isinstance(value, dict):
        return {key: _none_inside(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_none_inside(item) for item in value]
    return value


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The section classes a value of this type may be: through unions, optionals and annotations, not containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType) or hasattr(annotation, "__metadata__"):
        return [found for part in get_args(annotation) for found in sections_in(part)]
    return []


def element_type(annotation: Any) -> Any:
    """The type of a list's items or of a dict's values; None where the type is no container."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType) or hasattr(annotation, "__metadata__"):
        return next((found for part in arguments if (found := element_type(part)) is not None), None)
    if isinstance(origin, type) and arguments:
        if issubclass(origin, dict):
            return arguments[1]
        if issubclass(origin, (list, tuple)):
            return arguments[0]
    return None
