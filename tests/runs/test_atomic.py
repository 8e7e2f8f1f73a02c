"""Files that are whole or absent, whatever stops the writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overland.errors import BrokenFileError, OverlandError
from overland.runs import atomic_write, read_json, remove_unfinished, replace_folder, sha256_file, write_json


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OverlandError, match=r"a\.json: the disk is full.*checkpoints/.*--resume") as raised:
        atomic_write(path, b"new")
    assert raised.value.exit_code == 1
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_reported_by_name() -> None:
    from overland.runs import explain_disk_errors

    with pytest.raises(OverlandError, match=r"/dev/full: the disk is full"):
        with explain_disk_errors("/dev/full"), open("/dev/full", "wb") as file:
            file.write(b"x")


def test_a_broken_json_file_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"a": ')
    with pytest.raises(BrokenFileError, match=r"state\.json: is not valid JSON.*without --resume"):
        read_json(tmp_path / "state.json")


def test_a_missing_file_is_a_broken_file_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenFileError, match="nothing"):
        sha256_file(tmp_path / "nothing")


def test_a_folder_replaces_an_older_one_of_its_name(tmp_path: Path) -> None:
    for name, text in (("final", "old"), ("temporary", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(text)
    replace_folder(tmp_path / "temporary", tmp_path / "final")
    assert (tmp_path / "final" / "x").read_text() == "new"
    assert os.listdir(tmp_path) == ["final"]


def test_what_a_killed_process_began_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "models" / ".mxfp4.14461.tmp").mkdir(parents=True)
    (tmp_path / "models" / ".mxfp4.14461.tmp" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".summary.json.7.tmp").write_text("{")
    for kept in ("models/mxfp4.json", "notes.tmp", ".hidden"):
        (tmp_path / kept).write_text("whole")
    remove_unfinished(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == [".hidden", "models/mxfp4.json", "notes.tmp"]
    assert not (tmp_path / "models" / ".mxfp4.14461.tmp").exists()
