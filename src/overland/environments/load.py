"""Domains by name."""

from __future__ import annotations

import difflib

from overland.environments.finance import Finance
from overland.environments.taskset import Taskset
from overland.environments.terminal import Terminal
from overland.environments.web import Web
from overland.errors import UsageError

DOMAINS: dict[str, type[Taskset]] = {"terminal": Terminal, "finance": Finance, "web": Web}


def load_environment(name: str, **options: object) -> Taskset:
    """The taskset of a domain. Raises UsageError for an unknown name or option, naming the nearest one."""
    if name not in DOMAINS:
        near = difflib.get_close_matches(name, DOMAINS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"environment {name!r} is unknown: use one of {', '.join(DOMAINS)}.{hint}")
    if options:
        raise UsageError(f"environment {name} has no option {sorted(options)[0]!r}")
    return DOMAINS[name]()
