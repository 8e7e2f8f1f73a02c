"""Did a run learn?   python tests/ci/check_curves.py RUN

The loss of pretraining and of SFT must fall and the reward of RL must rise, from the first third of the steps to the
last, in means. Exits with 1 and says which curve did not move.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from overland.runs import RunFolder


@dataclass(frozen=True)
class Curve:
    """One curve of metrics.jsonl and where it has to go."""

    stage: str
    name: str
    rises: bool


CURVES = (
    Curve("pretrain", "train/loss", rises=False),
    Curve("sft", "sft/loss", rises=False),
    Curve("rl", "rl/reward", rises=True),
)


def moved(values: list[float], rises: bool) -> tuple[bool, float, float]:
    """(whether it went the right way, mean of the first third, mean of the last third)."""
    third = max(1, len(values) // 3)
    first, last = fmean(values[:third]), fmean(values[-third:])
    return (last > first if rises else last < first), first, last


def check(run: Path) -> list[str]:
    """One line a curve that did not go where it should."""
    rows = RunFolder(run).read_metrics()
    wrong = []
    for curve in CURVES:
        values = [
            float(row[curve.name])
            for row in rows
            if row.get("stage") == curve.stage and isinstance(row.get(curve.name), int | float)
        ]
        if len(values) < 3:
            wrong.append(f"{curve.stage}: {curve.name} has {len(values)} points; the stage did not run")
            continue
        right, first, last = moved(values, curve.rises)
        line = f"{curve.stage}: {curve.name} {first:.3f} -> {last:.3f} over {len(values)} points"
        print(line)
        if not right:
            wrong.append(f"{line}: it had to {'rise' if curve.rises else 'fall'}")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    if problems := check(Path(sys.argv[1])):
        sys.exit("\n".join(problems))
