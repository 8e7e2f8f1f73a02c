"""A family is a mapping: which of our config fields stands where in its config.json, and what its tensors are called.

Reading and writing walk the same tables, so that what is written reads back as what it was. Nothing in a family
computes: a new one is new tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from overland.errors import UsageError
from overland.model.config import DecoderConfig

Fields = dict[str, Any]


@dataclass(frozen=True)
class Codec:
    """A part of a config that takes more than a renamed field: `read` gives our dotted fields, `write` theirs.

    `theirs` are the released fields that it looks at; the first one is named where something is wrong. `called` is what
    our fields that it reads are called there, where that is a field.
    """

    theirs: tuple[str, ...]
    read: Callable[[Fields], Fields]
    write: Callable[[DecoderConfig], Fields]
    called: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpertNames:
    """How a family stores routed experts: one matrix [out, in] an expert and projection, or stacked (`fused`).

    `base` is where they lie in a layer, `gate`, `up` and `down` what an expert's matrices are called. Fused ones are
    gpt-oss's: [E, in, 2 * width] with gate and up in turn, [E, width, out], and a bias for each.
    """

    base: str = "block_sparse_moe.experts"
    gate: str = "w1"
    up: str = "w3"
    down: str = "w2"
    fused: bool = False


@dataclass(frozen=True)
class Around:
    """A config.json with text_config and vision_config: what it says of itself, and which fields stand beside them.

    `sparse_architecture` is that of a model with a lightning indexer.
    """

    model_type: str
    architecture: str
    sparse_architecture: str
    beside: tuple[str, ...]
    fresh: Fields

    def says(self, config: DecoderConfig) -> Fields:
        """What is written unless the file that was read said otherwise."""
        architecture = self.architecture if config.indexer is None else self.sparse_architecture
        return {"architectures": [architecture], "model_type": self.model_type, **self.fresh}


@dataclass(frozen=True)
class Family:
    """One released family.

    `fields`: our dotted field -> theirs. `always`: our fields that the family fixes. `defaults`: what their fields are
    when config.json leaves them out. `only`: their fields that must have one of these values. `constant`: their fields
    that are written as they stand (of a section only where there is one). `aliases`: other names that some writers
    give their fields. `codecs`: layers, positions, and the like. `renames`: regular expressions from our tensor names
    to theirs. `flat_decay` tells Kimi K3's A_log [H] from Kimi-Linear's [1, 1, H, 1]. `around` is the file of a model
    with a vision part, in which these fields are the text_config; None where the family has no vision here.
    """

    name: str
    model_type: str
    architecture: str
    fields: dict[str, str]
    always: Fields = field(default_factory=dict)
    defaults: Fields = field(default_factory=dict)
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    constant: Fields = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    codecs: tuple[Codec, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    experts: ExpertNames = ExpertNames()
    flat_decay: bool = True
    around: Around | None = None

    def read(self, theirs: Fields, source: str) -> DecoderConfig:
        """Our config from a config.json's content. Raises UsageError naming the first wrong field."""
        theirs = {self.aliases.get(name, name): value for name, value in theirs.items()}
        values = {**self.defaults, **{k: v for k, v in theirs.items() if v is not None or k not in self.defaults}}
        for name, allowed in self.only.items():
            found, value = _get(values, name)
            if found and value not in allowed:
                valid = " or ".join(repr(value) for value in allowed)
                raise UsageError(f"{source}: {name} = {value!r} is not supported for {self.name}; valid: {valid}")
        ours: Fields = {"family": self.name}
        for name, value in self.always.items():
            _put(ours, name, value)
        for name, their in self.fields.items():
            found, value = _get(values, their)
            if found:
                _put(ours, name, value)
            elif not _optional(name) and ("." not in their or their.split(".")[0] in values):
                raise UsageError(f"{source}: {their} is missing; {self.name} needs it")
        for codec in self.codecs:
            try:
                for name, value in codec.read(values).items():
                    _put(ours, name, value)
            except KeyError as error:
                raise UsageError(f"{source}: {error.args[0]} is missing; {self.name} needs it") from None
            except (ValueError, TypeError, AttributeError) as error:
                raise UsageError(f"{source}: {codec.theirs[0]}: {error}") from None
        ours["extra"] = {name: value for name, value in theirs.items() if name not in self._known()}
        try:
            return DecoderConfig.model_validate(ours)
        except ValidationError as error:
            raise UsageError(f"{source}: {self._explain(error)}") from None

    def write(self, config: DecoderConfig) -> Fields:
        """config.json's content; `read` of it gives `config` back."""
        theirs: Fields = {"architectures": [self.architecture], "model_type": self.model_type}
        for name, their in self.fields.items():
            value: Any = config
            for part in name.split("."):
                value = getattr(value, part) if value is not None else None
            if value is not None or their in self.defaults:  # what is left out would be read as somebody's default
                _put(theirs, their, value)
        for codec in self.codecs:
            for their, value in codec.write(config).items():
                if value is not None:
                    _put(theirs, their, value)
        for their, value in self.constant.items():
            if "." not in their or their.split(".")[0] in theirs:
                _put(theirs, their, value)
        return {**theirs, **config.extra}

    def _known(self) -> set[str]:
        names = {their.split(".")[0] for their in self.fields.values()}
        names.update(their.split(".")[0] for codec in self.codecs for their in codec.theirs)
        names.update(their.split(".")[0] for their in self.constant)
        return names | {"architectures", "model_type"}

    def _explain(self, error: ValidationError) -> str:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        names = self.fields | {ours: their for codec in self.codecs for ours, their in codec.called.items()}
        their = next((names[ours] for ours in (path, path.rpartition(".")[0]) if ours in names), path)
        what = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            return f"{their} is missing; {self.name} needs it"
        if their and isinstance(first["input"], str | int | float | None):
            return f"{their} = {first['input']!r}: {what}"
        return f"{their}: {what}" if their else what

    def their_name(self, ours: str) -> str:
        """The released name of one of our tensors (experts apart)."""
        for pattern, replacement in self.renames:
            ours = re.sub(pattern, replacement, ours)
        return ours


def _put(target: Fields, dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        target = target.setdefault(section, {})
    target[last] = value


def _get(source: Fields, dotted: str) -> tuple[bool, Any]:
    value: Any = source
    for part in dotted.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _optional(name: str) -> bool:
    """Whether our field has a default of its own."""
    section: Any = DecoderConfig
    for part in name.split("."):
        info = section.model_fields[part]
        kinds = (info.annotation, *getattr(info.annotation, "__args__", ()))
        section = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    return not info.is_required()
