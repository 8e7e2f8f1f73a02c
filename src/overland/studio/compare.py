"""Two steps of a run side by side: what the figures say, and episodes of the same domain, level and effort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overland.chat import Tokenizer
from overland.errors import UsageError
from overland.evaluate.outcomes import outcome
from overland.runs import read_jsonl_zst
from overland.studio.markup import figure, text
from overland.studio.trajectory import one, write_page

SHOWN = (
    "rl/success",
    "rl/reward",
    "rl/episode_tokens",
    "rl/parse_failures",
    "rl/truncated",
    "rl/over_budget",
    "rl/suspected",
    "rl/groups_without_variance",
    "rl/entropy",
    "rl/mismatch_kl",
    "rl/clipped_share",
    "rl/grad_norm",
    "rl/loss",
)
Cell = tuple[str, int | None, str]


def write_comparison(
    run: Path, steps: tuple[int, int], rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer | None, path: Path,
    pairs: int = 6,
) -> Path:  # fmt: skip
    """Write the page of two steps. `rows` are the run's metrics. Raises UsageError for a step without episodes."""
    found = [_episodes(run, step) for step in steps]
    figures = [next((row for row in rows if row.get("step") == step + 1 and "rl/success" in row), {}) for step in steps]
    names = [name for name in SHOWN if any(name in f for f in figures)]
    names += sorted({n for f in figures for n in f if n.startswith("rl/success/") and n.count("/") == 2})
    table = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + "".join(f"<td>{figure(f.get(name))}</td>" for f in figures)
        + f"<td>{_difference(*(f.get(name) for f in figures))}</td></tr>"
        for name in names
    )
    head = f"<tr><th>figure</th><th>step {steps[0]}</th><th>step {steps[1]}</th><th>change</th></tr>"
    body = f'<div class="scroll"><table><thead>{head}</thead><tbody>{table}</tbody></table></div>'
    body += (
        '<p class="legend">Tasks never repeat in a run: pairs below share domain, level and effort, not the task.</p>'
    )
    for cell in _shared(found, pairs):
        domain, level, effort = cell
        sides = "".join(
            f"<div><h2>step {step}: {text(domain)}, level {level}, {text(effort)}</h2>"
            f"{one(episodes[cell][0], tokenizer)}</div>"
            for step, episodes in zip(steps, found, strict=True)
        )
        body += f'<section class="side">{sides}</section>'
    return write_page(path, f"{run.resolve().name}: steps {steps[0]} and {steps[1]}", body)


def _episodes(run: Path, step: int) -> dict[Cell, list[Mapping[str, Any]]]:
    path = run / "episodes" / f"rl-step-{step:05d}.jsonl.zst"
    if not path.is_file():
        there = sorted((run / "episodes").glob("rl-step-*.jsonl.zst"))
        names = [f.name.removeprefix("rl-step-").split(".")[0].lstrip("0") or "0" for f in there]
        known = f"; it has {names[0]} to {names[-1]}" if names else ""
        raise UsageError(f"--compare {step}: the run has no episodes of it{known}")
    found: dict[Cell, list[Mapping[str, Any]]] = {}
    for record in read_jsonl_zst(path):
        o = outcome(record)
        found.setdefault((o.domain, o.level, o.effort), []).append(record)
    return found


def _shared(found: Sequence[Mapping[Cell, Any]], count: int) -> list[Cell]:
    """Cells that both steps have, every domain before any comes again."""
    both = sorted((c for c in found[0] if c in found[1]), key=lambda c: (c[1] or 0, c[2], c[0]))
    order: dict[str, list[Cell]] = {}
    for cell in both:
        order.setdefault(cell[0], []).append(cell)
    chosen: list[Cell] = []
    while len(chosen) < count and any(order.values()):
        for cells in order.values():
            if cells and len(chosen) < count:
                chosen.append(cells.pop(0))
    return chosen


def _difference(before: Any, after: Any) -> str:
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return "–"
    return f"{after - before:+.3g}"
