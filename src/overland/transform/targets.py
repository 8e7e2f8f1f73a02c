"""Which Linears a transform is for, by name, and how a module is put in another's place."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from overland.errors import UsageError

ALL = "all-linear"
EXPERTS = "experts"
"""The stacked routed experts, which are no Linears."""


def chosen_linears(model: nn.Module, targets: Sequence[str], field: str) -> dict[str, nn.Linear]:
    """The Linears that `targets` name, by path: a module's own name (q_proj), a pattern over its whole path
    (model.layers.*.o_proj), or all-linear for every one but the output head.

    Raises UsageError, calling the option `field`, for a target that names none.
    """
    linears = {path: m for path, m in model.named_modules() if isinstance(m, nn.Linear)}
    found: set[str] = set()
    for target in targets:
        named = [path for path in linears if is_named(path, target)]
        if not named:
            names = sorted({p.rsplit(".", 1)[-1] for p in linears})
            near = difflib.get_close_matches(target, names, 1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
            raise UsageError(f"{field}: {target!r} names no Linear of the model; {hint}")
        found.update(named)
    return {path: linears[path] for path in linears if path in found}


def is_named(path: str, target: str) -> bool:
    """Whether `target` names the Linear at `path`."""
    if target == ALL:
        return path.rsplit(".", 1)[-1] not in ("lm_head", "head")
    return path == target or path.endswith(f".{target}") or fnmatchcase(path, target)


def replace_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put `module` at `path`."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
