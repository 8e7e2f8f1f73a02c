"""The run folder after kills, resumes and damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overland.errors import BrokenFileError, OverlandError
from overland.runs import RunFolder

WRITER = """
import sys
from overland.runs import RunFolder
run = RunFolder(sys.argv[1])
for step in range(10**9):
    run.metrics({"step": step, "text": "x" * 50})
    run.write("state.json", '{"step": %d, "pad": "%s"}' % (step, "y" * 2000))
    if step == 5:
        print("going", flush=True)
"""


def test_a_killed_writer_leaves_whole_lines_and_whole_files(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run = RunFolder(tmp_path)
    steps = [row["step"] for row in run.read_metrics()]
    assert steps == list(range(len(steps)))
    assert len(steps) > 5
    assert json.loads((tmp_path / "state.json").read_text())["step"] in (steps[-1], steps[-1] - 1)


def test_a_torn_last_line_is_cut_before_the_next_is_written(tmp_path: Path) -> None:
    RunFolder(tmp_path).metrics({"step": 0})
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 1, "train/lo')
    assert RunFolder(tmp_path).read_metrics() == [{"step": 0}]
    run = RunFolder(tmp_path)
    run.metrics({"step": 1})
    assert run.read_metrics() == [{"step": 0}, {"step": 1}]


def test_rewinding_cuts_what_was_written_after_the_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics({"step": 0})
    position = run.metrics_position()
    run.metrics({"step": 1})
    run.rewind_metrics(position)
    assert run.read_metrics() == [{"step": 0}]
    with pytest.raises(BrokenFileError, match="without --resume"):
        run.rewind_metrics(position + 1)


def test_values_json_has_no_word_for_become_null(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics({"train/loss": float("nan"), "x": [float("inf"), 1.0]})
    assert run.read_metrics() == [{"train/loss": None, "x": [None, 1.0]}]


def test_a_finished_stage_is_found_again_with_its_outputs(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write("model/a.bin", b"weights")
    assert run.stage_done("sft") is None
    run.finish_stage("sft", {"model": run.model, "loss": 1.5, "log": "model/a.bin"})
    assert RunFolder(tmp_path).stage_done("sft") == {"model": "model", "loss": 1.5, "log": "model/a.bin"}


@pytest.mark.parametrize("damage, state", [("change", "has changed"), ("remove", "is missing")])
def test_a_damaged_output_is_named_with_the_fix(tmp_path: Path, damage: str, state: str) -> None:
    run = RunFolder(tmp_path)
    target = run.write("model/a.bin", b"weights")
    run.finish_stage("sft", {"model": target})
    if damage == "change":
        target.write_bytes(b"weightz")
    else:
        target.unlink()
    with pytest.raises(BrokenFileError, match=rf"a\.bin: {state}.*sft\.json to redo.*without --resume"):
        run.stage_done("sft")


def test_a_broken_stage_record_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write("stages/sft.json", "[]")
    with pytest.raises(BrokenFileError, match=r"sft\.json"):
        run.stage_done("sft")


def test_a_stage_cannot_claim_a_file_it_did_not_write(tmp_path: Path) -> None:
    with pytest.raises(OverlandError, match="nowhere"):
        RunFolder(tmp_path).finish_stage("sft", {"model": tmp_path / "nowhere"})


def test_starting_a_stage_again_undoes_it_and_the_stages_after_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for name in ("corpus", "pretrain", "sft"):
        run.start_stage(name)
        run.metrics({"stage": name})
        run.finish_stage(name, {})
    position = run.start_stage("pretrain")
    assert [run.stage_done(name) is not None for name in ("corpus", "pretrain", "sft")] == [True, False, False]
    run.rewind_metrics(position)
    assert run.read_metrics() == [{"stage": "corpus"}]


def test_the_manifest_names_versions_without_importing_torch(tmp_path: Path) -> None:
    code = "import sys; from overland.runs import RunFolder; import overland.config; r = RunFolder(sys.argv[1]);"
    code += "r.write_manifest({'seed': 3}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    manifest = RunFolder(tmp_path).read_manifest()
    assert manifest["seed"] == 3
    assert manifest["packages"]["torch"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(OverlandError, match="is a file"):
        RunFolder(tmp_path / "x")


def test_media_is_kept_once_under_its_content(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.put_media(b"png") == run.put_media(b"png")
    assert len(list((tmp_path / "media").iterdir())) == 1
