"""Domains by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from overland.environments.cad import Cad
from overland.environments.coding import Coding
from overland.environments.finance import Finance
from overland.environments.office import Office
from overland.environments.task import Task
from overland.environments.taskset import Taskset
from overland.environments.terminal import Terminal
from overland.environments.web import Web
from overland.errors import UsageError

DOMAINS: dict[str, type[Taskset]] = {
    "terminal": Terminal,
    "finance": Finance,
    "web": Web,
    "code": Coding,
    "office": Office,
    "cad": Cad,
}

STARTERS = ("terminal", "finance", "web")
"""The domains whose easy levels a nano model can learn in minutes: what the quickstart trains and tests on."""


def load_environment(name: str, **options: object) -> Taskset:
    """The taskset of a domain. Raises UsageError for an unknown name or option, naming the nearest one."""
    if name not in DOMAINS:
        near = difflib.get_close_matches(name, DOMAINS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"environment {name!r} is unknown: use one of {', '.join(DOMAINS)}.{hint}")
    if options:
        raise UsageError(f"environment {name} has no option {sorted(options)[0]!r}")
    return DOMAINS[name]()


def task_data(task: Task) -> dict[str, Any]:
    """A task as plain data, verifiers' TaskData fields first. The world is not in it: it follows from the seed."""
    return {
        "id": task.id,
        "idx": task.seed,
        "prompt": task.prompt,
        "domain": task.domain,
        "kind": task.kind,
        "split": task.split,
        "level": task.level,
        "seed": task.seed,
        "answer": task.answer,
        "outcome": task.outcome,
    }


def task_from_data(data: Mapping[str, Any]) -> Task:
    """The task that `task_data` described, built again. Raises UsageError where this version builds another one."""
    task = load_environment(data["domain"]).task(data["split"], data["level"], data["seed"], data["kind"])
    if task.prompt != data["prompt"] or task.answer != data["answer"]:
        raise UsageError(f"task {data['id']!r} was made by another version: its prompt or answer differs")
    return task
