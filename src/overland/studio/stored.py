"""What a run stored, read as far as it goes: a killed or damaged run still gives a page, with what is missing."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overland.chat import Tokenizer
from overland.errors import BrokenFileError, UsageError
from overland.runs import read_jsonl_zst
from overland.studio.charts import Bounds, Point
from overland.studio.markup import number

Json = dict[str, Any]


@dataclass
class Stored:
    """The parts of a run folder that the report reads. Absent parts are empty and named in `missing`."""

    path: Path
    recipe: Json = field(default_factory=dict)
    recipe_text: str = ""
    manifest: Json = field(default_factory=dict)
    summary: Json = field(default_factory=dict)
    metrics: list[Json] = field(default_factory=list)
    episode_files: list[Path] = field(default_factory=list)
    tokenizer: Tokenizer | None = None
    missing: list[str] = field(default_factory=list)

    def series(self, name: str, stage: str | None = None) -> list[Point]:
        """[(step, value)] of one metric, in order of step; values that are not finite numbers are left out."""
        points = {}
        for row in self.metrics:
            step, value = number(row.get("step")), number(row.get(name))
            if step is not None and value is not None and (stage is None or row.get("stage", stage) == stage):
                points[step] = value  # a step that was redone after a kill counts once, as last written
        return sorted(points.items())

    def names(self, prefix: str) -> list[str]:
        """What follows `prefix` in the metrics' names, in order of first appearance."""
        found: dict[str, None] = {}
        for row in self.metrics:
            for name in row:
                if name.startswith(prefix):
                    found.setdefault(name[len(prefix) :])
        return list(found)

    def part(self, *keys: str) -> Json:
        """A nested object of the summary, or {} where any level is absent or something else."""
        node: Any = self.summary
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else {}

    def episodes(self, path: Path) -> Iterator[Json]:
        """The episodes of one file; where it is broken it ends early and is named in `missing`."""
        try:
            for row in read_jsonl_zst(path):
                if isinstance(row, dict):
                    yield row
        except BrokenFileError as error:
            note = str(error).replace(str(self.path) + "/", "")
            if note not in self.missing:
                self.missing.append(note)


def read_run(path: Path) -> Stored:
    """Read a run folder. UsageError where there is no such folder; anything else that is wrong is only noted."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such run folder. Give one that a run wrote, such as runs/quickstart.")
    run = Stored(path)
    run.recipe_text = _text(run, "recipe.toml")
    try:
        run.recipe = tomllib.loads(run.recipe_text)
    except tomllib.TOMLDecodeError as error:
        run.missing.append(f"recipe.toml is damaged: {error}")
    run.manifest = _json(run, "manifest.json")
    run.summary = _json(run, "summary.json")
    broken = 0
    for line in _text(run, "metrics.jsonl").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            broken += 1  # a kill can tear the last line
            continue
        if isinstance(row, dict):
            run.metrics.append(row)
    if broken:
        run.missing.append(f"metrics.jsonl: {broken} line{'s' * (broken > 1)} could not be read")
    run.episode_files = sorted((path / "episodes").glob("*.jsonl.zst"))
    if not run.episode_files:
        run.missing.append("episodes/ has no trajectories (no stage that runs tasks has finished a step)")
    try:
        run.tokenizer = Tokenizer.load(path / "model")
    except Exception:  # whatever is wrong with it, the trajectories can still be read
        run.missing.append("model/tokenizer.json is absent or unreadable: tokens are shown by number")
    return run


def bounds(record: Any) -> Bounds | None:
    """A stored {"success", "low95", "high95", "n"} as Bounds, or None where a figure is absent or impossible."""
    if not isinstance(record, dict):
        return None
    rate, low, high = (number(record.get(key)) for key in ("success", "low95", "high95"))
    if rate is None or low is None or high is None or not 0 <= low <= high <= 1 or not 0 <= rate <= 1:
        return None
    n = number(record.get("n"))
    return Bounds(rate, low, high, int(n) if n is not None else None)


def _text(run: Stored, name: str) -> str:
    try:
        return (run.path / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        run.missing.append(f"{name} is absent" + (" (the run has not finished)" if name == "summary.json" else ""))
        return ""


def _json(run: Stored, name: str) -> Json:
    content = _text(run, name)
    if not content:
        return {}
    try:
        value = json.loads(content)
    except ValueError as error:
        run.missing.append(f"{name} is damaged: {error}")
        return {}
    if not isinstance(value, dict):
        run.missing.append(f"{name} holds no object")
        return {}
    return value
