"""BFCL's multi-turn tasks, played by their ground truth through their own tools (bfcl-eval, where it is installed)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest
from studio.made_up import small_tokenizer

import overland.pipeline
from overland.pipeline.bfcl import parse_call
from overland.pipeline.conversations import read_conversations
from overland.pipeline.dialects import read_dialect
from tests.rl.peers import PYTHON, installed

SCRIPT = Path(overland.pipeline.__file__).with_name("bfcl.py")


def test_a_call_in_python_becomes_named_arguments() -> None:
    found = parse_call("diff('a.txt', file_name2='b.txt')", {"diff": ["file_name1", "file_name2"]})
    assert found["name"] == "diff"
    assert json.loads(found["arguments"]) == {"file_name1": "a.txt", "file_name2": "b.txt"}
    with pytest.raises(ValueError, match="is not a call"):
        parse_call("'ls'", {})


@pytest.mark.skipif(not installed("bfcl_eval"), reason="bfcl-eval is not installed (tests/rl/peers.py says how)")
@pytest.mark.parametrize("category", ["base", "miss_param"])
def test_every_ground_truth_call_runs_and_the_conversation_can_be_learned(category: str, tmp_path: Path) -> None:
    out = tmp_path / "bfcl.jsonl"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [str(PYTHON), str(SCRIPT), str(out), "--category", category, "--limit", "40"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = list(read_dialect(out))
    assert len(rows) == 40
    for row in rows:
        declared = {tool["function"]["name"] for tool in row["tools"]}
        calls = [c["function"] for m in row["messages"] for c in m.get("tool_calls") or ()]
        assert calls
        assert {c["name"] for c in calls} <= declared
        results = [m["content"] for m in row["messages"] if m["role"] == "tool"]
        assert len(results) == len(calls)
        assert not any("Error during execution" in r for r in results)
        assert next(m["role"] for m in row["messages"] if m["role"] in ("user", "tool")) == "user"
    truth = PYTHON.parent.parent.glob(f"lib/*/site-packages/bfcl_eval/data/possible_answer/*multi_turn_{category}.json")
    wanted = [json.loads(line)["ground_truth"] for line in next(iter(truth)).read_text().splitlines()[:40]]
    for row, turns in zip(rows, wanted, strict=True):
        names = [ast.parse(call).body[0].value.func.id for turn in turns for call in turn]  # type: ignore[attr-defined]
        assert [c["function"]["name"] for m in row["messages"] for c in m.get("tool_calls") or ()] == names
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    assert len(read_conversations(few, small_tokenizer(), 1_000_000)) == 4
