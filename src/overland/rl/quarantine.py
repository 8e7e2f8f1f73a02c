"""Tasks that are not to be trained on: broken, or suspected of paying for the wrong thing.

RUN/quarantine.json maps a task's id to the reason. The trainer adds tasks whose data failed, `overland rl audit`
proposes tasks whose reward did not come out again; a person may add lines. It is read when a run starts or goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from overland.errors import BrokenFileError
from overland.runs import read_json, write_json

NAME = "quarantine.json"


class Quarantine:
    """Reasons by task id."""

    def __init__(self, reasons: dict[str, str] | None = None) -> None:
        self.reasons: dict[str, str] = dict(reasons or {})

    @classmethod
    def read(cls, run: Path) -> Quarantine:
        """The run's list; empty where there is none. Raises BrokenFileError where the file is no such list."""
        path = run / NAME
        if not path.is_file():
            return cls()
        found = read_json(path)
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise BrokenFileError(f'{path}: is not a list of reasons by task; remove it or write {{"TASK": "why"}}')
        return cls(found)

    def write(self, run: Path) -> None:
        """Leave the list in the run folder, atomically."""
        write_json(run / NAME, dict(sorted(self.reasons.items())))

    def add(self, task: str, reason: str) -> bool:
        """True where the task was not on the list before."""
        new = task not in self.reasons
        self.reasons.setdefault(task, reason)
        return new

    def extend(self, tasks: Iterable[str], reason: str) -> int:
        """How many of the tasks were not on the list before."""
        return sum(self.add(task, reason) for task in list(tasks))

    def __contains__(self, task: object) -> bool:
        return task in self.reasons

    def __len__(self) -> int:
        return len(self.reasons)
