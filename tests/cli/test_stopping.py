"""A quickstart that is stopped by Ctrl-C or killed goes on where it was: no step twice, none left out, same figures."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .program import Overland
from .stopping import Stop, begun, finished, rolls_out, rows, says, stopped, updates, wrote

SMALL = (
    "corpus.max_megabytes=0.3", "corpus.tokenizer_megabytes=0.2", "pretrain.steps=8", "pretrain.batch=4",
    "pretrain.length=64", "pretrain.checkpoint_every=3", "demonstrations.tasks=4", "sft.steps=9", "sft.batch=2",
    "sft.checkpoint_every=3", "evaluate.tasks=2", "evaluate.output_tokens=16",
    # An untrained model earns nothing: what it learns from is what its length costs, in every step. All tasks have a
    # shell, so that whoever looks from outside sees the rollouts by their sandboxes.
    "rl.steps=5", "rl.tasks_per_step=4", "rl.group_size=2", "rl.turn_tokens=12", "rl.max_turns=2",
    "rl.checkpoint_every=2", "rl.algorithm={type='reinforce', baseline='none'}", "rl.watchdogs.patience=100",
    "rl.overlong.buffer=15", *(f"rl.efforts.{effort}.output_tokens=16" for effort in ("low", "high", "max")),
    "rl.domains={terminal={}, finance={share=0}, web={share=0}}",
)  # fmt: skip
BEGIN = ("--out", "run", *(word for change in SMALL for word in ("--set", change)))
RESUME = ("--out", "run", "--resume")
CONTINUE = "Continue with: overland quickstart --out run --resume"

STOPS = (
    Stop(signal.SIGINT, "group", (says("corpus: tokenizer: started"),)),
    Stop(signal.SIGKILL, "group", (wrote("pretrain", 4),)),
    Stop(signal.SIGINT, "group", (wrote("sft", 4),)),
    Stop(signal.SIGKILL, "other rank", (wrote("rl", 1), rolls_out)),
    Stop(signal.SIGINT, "first", (wrote("rl", 2), rolls_out, updates)),
    Stop(signal.SIGKILL, "first", (wrote("rl", 4), rolls_out)),
    Stop(signal.SIGINT, "group", (begun("evaluate-rl"), rolls_out)),
    Stop(signal.SIGKILL, "first", (begun("quantize"),)),
    Stop(signal.SIGINT, "first", (begun("serve"), rolls_out)),
    Stop(signal.SIGINT, "group", (finished("serve"),)),
)
"""In the corpus, pretraining, SFT, three times in RL, evaluation, quantisation, serving and the report."""


def figures(run: Path) -> list[dict[str, Any]]:
    """The metrics without what a clock says."""
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows(run)]


def reached(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    return {part: summary[part] for part in ("bpb", "tokens", "held_out", "levels", "efforts", "mxfp4", "rl", "served")}


def litter(home: Path) -> list[Path]:
    """What only a write in progress may leave."""
    return [path for path in home.rglob("*") if path.suffix in (".tmp", ".old")]


@pytest.mark.slow
def test_stopped_in_every_stage_it_ends_as_if_nothing_had_happened(tmp_path: Path, overland: Overland) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    for number, stop in enumerate(STOPS):
        code, said = stopped(RESUME if number else BEGIN, tmp_path, stop)
        assert "Traceback" not in said
        assert "Warning" not in said
        last = said.splitlines()[-1] if said else ""
        if stop.target == "other rank":
            assert code == 1
            assert last.startswith("rank 1 was killed (SIGKILL)")
            assert last.endswith("run again with --resume.")
        elif stop.signal is signal.SIGKILL:
            assert code == -signal.SIGKILL
        else:
            # a shell sees 130 in both; Python ends of the signal itself where it came amid an import's exec
            assert code in (130, -signal.SIGINT)
            assert last.endswith(CONTINUE)
            assert not litter(tmp_path)
        if number == 0:
            assert not (run / "corpus").exists()  # pieces already read wait beside it
        if number == 2:
            shutil.copytree(run, whole)  # the same run from here on, not stopped any more

    for folder in ("run", "whole"):
        done = overland("quickstart", "--out", folder, "--resume", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert figures(run) == figures(whole)
    assert reached(run) == reached(whole)
    for weights in ("model", "models/mxfp4"):
        assert len({(at / weights / "model.safetensors").read_bytes() for at in (run, whole)}) == 1
    steps = Counter((r["stage"], r["step"]) for r in rows(run) if any(name.endswith("/loss") for name in r))
    assert set(steps.values()) == {1}
    assert [step for stage, step in steps if stage == "pretrain"] == [*range(8)]
    assert [step for stage, step in steps if stage == "sft"] == [*range(9)]
    assert [step for stage, step in steps if stage == "rl"] == [*range(1, 6)]
    assert (run / "report.html").read_bytes().endswith(b"</html>\n")
    assert not litter(tmp_path)
