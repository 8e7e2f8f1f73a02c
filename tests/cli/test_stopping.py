"""A quickstart that is stopped by Ctrl-C or killed goes on where it was: no step twice, none left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .program import ENVIRONMENT, command

SMALL = (
    "corpus.max_megabytes=0.3", "corpus.tokenizer_megabytes=0.1", "pretrain.steps=12", "pretrain.batch=4",
    "pretrain.checkpoint_every=3", "demonstrations.tasks=4", "sft.steps=12", "sft.checkpoint_every=3",
    "evaluate.tasks=1",
)  # fmt: skip
BEGIN = ("--out", "run", *(word for change in SMALL for word in ("--set", change)))
RESUME = ("--out", "run", "--resume")


def rows(run: Path) -> list[dict[str, Any]]:
    """Whole lines of the metrics so far."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def stopped(words: tuple[str, ...], home: Path, number: signal.Signals, stage: str, step: int) -> tuple[int, str]:
    """Start or resume; once `stage` has written `step`, send the signal to all its processes, as a terminal does."""
    with (
        open(home / "said", "w") as said,
        subprocess.Popen(
            command("quickstart", *words), cwd=home, stdout=said, stderr=said, env=ENVIRONMENT, start_new_session=True
        ) as work,
    ):
        until = time.monotonic() + 600
        while not any(r.get("stage") == stage and r.get("step", -2) >= step for r in rows(home / "run")):
            assert work.poll() is None, (home / "said").read_text()
            assert time.monotonic() < until, "the step did not come"
            time.sleep(0.05)
        os.killpg(work.pid, number)
        code = work.wait(timeout=120)
    return code, (home / "said").read_text()


@pytest.mark.slow
def test_ctrl_c_and_kill_in_one_stage_after_another(tmp_path: Path) -> None:
    code, said = stopped(BEGIN, tmp_path, signal.SIGINT, "pretrain", 4)
    assert code == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1].endswith("Continue with: overland quickstart --out run --resume")

    code, said = stopped(RESUME, tmp_path, signal.SIGKILL, "pretrain", 8)
    assert code == -signal.SIGKILL

    code, said = stopped(RESUME, tmp_path, signal.SIGKILL, "sft", 4)
    assert code == -signal.SIGKILL

    code, said = stopped(RESUME, tmp_path, signal.SIGINT, "sft", 8)
    assert code == 130
    assert "Traceback" not in said

    steps = Counter((r["stage"], r["step"]) for r in rows(tmp_path / "run") if "train/loss" in r or "sft/loss" in r)
    assert set(steps.values()) == {1}
    assert {step for stage, step in steps if stage == "pretrain"} == set(range(12))
    sft = {step for stage, step in steps if stage == "sft"}
    assert sft == set(range(len(sft)))


@pytest.mark.slow
def test_ctrl_c_while_the_corpus_is_built_leaves_no_half_corpus(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("quickstart", "--out", "run"), cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        start_new_session=True,
    ) as work:  # fmt: skip
        assert work.stderr is not None
        while "corpus: tokenizer: started" not in (line := work.stderr.readline()):
            assert line
            assert "pretrain" not in line, "the corpus was built before it could be stopped"
        os.killpg(work.pid, signal.SIGINT)
        _, said = work.communicate(timeout=120)
    assert work.returncode == 130, said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "corpus").exists()  # pieces already read wait beside it for a resume
