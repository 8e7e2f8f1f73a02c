"""`overland rl audit`: the audit of a run with its own recipe's costs, and the files it leaves for a person."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from overland.agent.sandbox import choose_sandbox
from overland.rl.audit import audit
from overland.rl.quarantine import Quarantine
from overland.runs import atomic_write, progress, write_json

ANSWER = 60
"""Characters of an answer in the table."""


def audit_run(
    run: Path, *, files: str = "rl-", limit: int = 0, sample: int = 12, seed: int = 0, no_sandbox: bool = False
) -> dict[str, Any]:
    """Audit `run`, write audit.json, label.jsonl and the proposals for quarantine.json, and return the figures."""
    with progress("audit", None, "episode") as bar:
        found = audit(
            run,
            sandbox=choose_sandbox(no_sandbox),
            files=files,
            limit=limit,
            scoring=_scoring(run),
            progress=lambda: bar.advance(1),
        )
    figures = found.figures()
    rows = [
        {
            "id": c.id,
            "file": c.file,
            "domain": c.domain,
            "task": c.task,
            "verdict": c.verdict,
            "reward": c.reward,
            "again": c.again,
            "suspected": ", ".join(f.kind for f in c.suspicions),
            "evidence": "; ".join(f.evidence for f in c.suspicions),
            "answer": c.answer[:ANSWER],
        }
        for c in found.sample(sample, seed)
    ]
    write_json(run / "audit.json", {**figures, "sample": rows})
    lines = (json.dumps({**row, "label": None}, ensure_ascii=False) + "\n" for row in rows)
    atomic_write(run / "label.jsonl", "".join(lines))
    quarantine = Quarantine.read(run)
    if sum(quarantine.add(task, why) for task, why in found.proposals.items()):
        quarantine.write(run)
    return {**figures, "sample": rows}


def _scoring(run: Path) -> dict[str, float]:
    """What wrong and harmful outcomes cost in the run, where its recipe says so."""
    path = run / "recipe.toml"
    if not path.is_file():
        return {}
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    scoring = (recipe.get("rl") or {}).get("scoring") or recipe.get("scoring") or {}
    return {name: float(scoring[name]) for name in ("wrong", "harm") if name in scoring}
