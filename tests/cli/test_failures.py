"""What goes wrong is one line on stderr that names the thing and the fix, with its exit code, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .program import ENVIRONMENT, Overland, command

MODEL = "runs/quickstart/model"


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """What was said, after checking that it is one line and no traceback."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "words, says",
    [
        (("modle",), "Did you mean 'model'?"),
        (("model", "info", "nano", "--jsn"), "overland model info: "),
        (("model", "info"), "overland model info: Missing argument"),
        (("model", "info", "nanno"), "'nanno' is neither a folder with config.json nor a preset (nano, micro, "),
        (("model", "info", "nano", "--dtype", "int8"), "dtype = 'int8'; valid: float32, bfloat16, float16"),
        (("model", "licence", "nowhere"), "nowhere: there is no such model folder"),
        (("train", "pretrain", "recipes/pretrian.toml", "--out", "x"), "Did you mean recipes/pretrain.toml?"),
        (("train", "pretrain", "recipes/pretrain.toml", "--out", "x", "--set", "pretrain.stpes=1"), "mean steps?"),
        (
            ("train", "pretrain", "recipes/pretrain.toml", "--out", "x", "--set", "pretrain.steps=0"),
            "pretrain.steps = 0",
        ),
        (("quickstart", "--out", "/proc/x/y"), "--out /proc/x/y: cannot be made or written"),
        (("quickstart", "--text", "none", "--dry-run"), "none does not exist"),
        (("train", "pretrain", "recipes/pretrain.toml", "--out", "x", "--set", "corpus=no"), "corpus = 'no' is not a"),
        (("train", "sft", "recipes/sft.toml", "--out", "x", "--set", "data=none.jsonl"), "there is no such file"),
        (("train", "sft", "recipes/sft.toml", "--out", "runs"), "--out runs: is not empty; continue it with --resume"),
        (("rl", "show", "nowhere"), "nowhere: holds no episodes"),
        (("rl", "show", "runs/quickstart", "--effort", "huge"), "effort = 'huge'; valid: low, high, max"),
        (("rl", "show", "runs/quickstart", "--min-reward", "1", "--max-reward", "0"), "is above max-reward"),
        (("quantize", MODEL, "notes"), "DST = 'notes' exists and is not an empty folder"),
        (("quantize", MODEL, "x", "--to", "int3"), "--to int3: is not a format Overland writes; valid: mxfp4"),
        (("serve", "nowhere"), "nowhere: there is no such model folder"),
        (("serve", MODEL, "--port", "70000"), "port = 70000"),
        (("agent", "  ", "--model", MODEL), "the task is empty"),
        (("agent", "word " * 4000, "--model", MODEL), "tokens long with its tools, the context holds 4096"),
        (("agent", "hi", "--model", "nowhere"), "'nowhere' is neither a model folder nor a URL"),
        (("agent", "hi", "--model", MODEL, "--workdir", "nowhere"), "--workdir nowhere: there is no such folder"),
        (("agent", "hi", "--model", MODEL, "--effort", "huge"), "huge"),
        (("eval", "finanse", "--model", MODEL), "Did you mean finance?"),
        (("eval", "finance", "--model", MODEL, "--tasks", "0"), "overland eval: "),
        (("studio", "nowhere"), "nowhere: no such run folder"),
        (("corpus", "inspect", "corpus/stdlib", "--token", "99999999"), "is not in split 'train'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_wrong_use_exits_2_and_writes_nothing(
    words: tuple[str, ...], says: str, workplace: Path, overland: Overland
) -> None:
    before = sorted(workplace.rglob("*"))
    done = overland(*words, cwd=workplace)
    assert says in one_line(done)
    assert done.returncode == 2
    assert sorted(workplace.rglob("*")) == before


def binary_folder(folder: Path) -> None:
    (folder / "picture.png").write_bytes(bytes(range(256)) * 40)
    (folder / "named.txt").write_bytes(b"\x00\xff\x10" * 4000)


def empty_files(folder: Path) -> None:
    (folder / "nothing.txt").touch()


def unlicensed(folder: Path) -> None:
    (folder / "notes.txt").write_text("The harbour and the people of the town have a story to tell. " * 40)


@pytest.mark.parametrize(
    "fill, says",
    [
        (lambda folder: None, "has nothing to read"),
        (empty_files, "1 empty file"),
        (binary_folder, "none of its"),
        (unlicensed, "corpus.text_licence"),
        (lambda folder: folder.rmdir(), "does not exist"),
    ],
    ids=["empty", "empty files", "binaries", "no licence", "absent"],
)
@pytest.mark.parametrize("verb", ["corpus build", "quickstart"])
def test_useless_text_is_named_before_anything_is_written(
    verb: str, fill: object, says: str, tmp_path: Path, overland: Overland
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    fill(text)  # type: ignore[operator]
    done = overland(*verb.split(), "--text", "text", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_text_is_named(tmp_path: Path, overland: Overland) -> None:
    (tmp_path / "text").mkdir(mode=0)
    done = overland("corpus", "build", "--text", "text", "--out", "out", cwd=tmp_path)
    assert (done.returncode, "cannot be read" in one_line(done)) == (2, True)


def test_a_port_in_use_is_a_failure_that_names_it(workplace: Path, overland: Overland) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = overland("serve", MODEL, "--port", str(port), cwd=workplace)
    assert f"port {port} on 127.0.0.1 is in use" in one_line(done)
    assert done.returncode == 1


def test_a_damaged_model_is_a_failure_that_names_the_file(workplace: Path, overland: Overland) -> None:
    weights = workplace / MODEL / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    done = overland("eval", "finance", "--model", MODEL, "--tasks", "1", cwd=workplace)
    assert "model.safetensors" in one_line(done)
    assert done.returncode == 1


def test_debug_shows_where_it_failed(workplace: Path, overland: Overland) -> None:
    done = overland("studio", "nowhere", "--debug", cwd=workplace)
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_an_endpoint_that_is_not_there_is_named(overland: Overland) -> None:
    done = overland("agent", "hi", "--model", "http://127.0.0.1:9/v1")
    assert "http://127.0.0.1:9/v1/models" in one_line(done)
    assert done.returncode == 1


def test_a_reader_that_has_read_enough_is_no_error(workplace: Path) -> None:
    line = f"{' '.join(command('rl', 'show', 'runs/quickstart', '--read', '--limit', '200'))} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", line], cwd=workplace, capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    assert done.stdout.startswith("──")
    assert done.stderr == ""


# ---- stopping and resuming

PRETRAIN = ("train", "pretrain", "recipes/pretrain.toml", "--set", "pretrain.steps=40", "--set", "pretrain.batch=4")


def curve(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]


def interrupted(workplace: Path, number: signal.Signals, steps: int) -> tuple[int, str]:
    """Start the training, stop it once so many steps are written; returns exit code and stderr."""
    words = (*PRETRAIN, "--set", "pretrain.checkpoint_every=10", "--out", "out")
    with subprocess.Popen(
        command(*words), cwd=workplace, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    ) as work:
        metrics = workplace / "out/metrics.jsonl"
        until = time.monotonic() + 300
        while not metrics.exists() or metrics.read_text().count("train/loss") < steps:
            assert work.poll() is None, "it ended too early"
            assert time.monotonic() < until, "no step was written"
            time.sleep(0.02)
        work.send_signal(number)
        _, said = work.communicate(timeout=120)
        return work.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_stopped_training_goes_on_as_if_nothing_had_happened(
    number: signal.Signals, workplace: Path, overland: Overland
) -> None:
    settings = ("--set", "pretrain.checkpoint_every=10")
    whole = overland(*PRETRAIN, *settings, "--out", "whole", cwd=workplace)
    assert whole.returncode == 0, whole.stderr
    code, said = interrupted(workplace, number, 14)
    if number is signal.SIGINT:
        assert code == 130
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith("stopped. What was finished is kept. Continue with: overland train pretrain ")
        resume = last.partition("Continue with: overland ")[2].split()
    else:
        assert code == -signal.SIGKILL
        resume = [*PRETRAIN, *settings, "--out", "out", "--resume"]
    done = overland(*resume, cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert curve(workplace / "out") == curve(workplace / "whole")


@pytest.mark.slow
def test_a_broken_resume_file_is_named(workplace: Path, overland: Overland) -> None:
    interrupted(workplace, signal.SIGKILL, 14)
    for file in (workplace / "out/checkpoints").rglob("*"):
        if file.is_file() and file.stat().st_size > 10_000:
            file.write_bytes(file.read_bytes()[:5000])
    done = overland(*PRETRAIN, "--set", "pretrain.checkpoint_every=10", "--out", "out", "--resume", cwd=workplace)
    assert done.returncode == 1
    assert "out/checkpoints" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_resuming_under_another_recipe_is_refused(workplace: Path, overland: Overland) -> None:
    interrupted(workplace, signal.SIGKILL, 2)
    done = overland(*PRETRAIN, "--set", "pretrain.lr=0.1", "--out", "out", "--resume", cwd=workplace)
    assert "--resume: this recipe is not the one in out/recipe.toml" in one_line(done)
    assert done.returncode == 2


def test_a_full_disk_is_said_and_leaves_no_half_corpus(
    small_disk: Callable[[str], Path], tmp_path: Path, overland: Overland
) -> None:
    small = small_disk("128k")
    done = overland("corpus", "build", "--set", "corpus.max_megabytes=0.3", "--out", "small/corpus", cwd=tmp_path)
    assert done.returncode == 1
    assert "disk is full" in done.stderr.splitlines()[-1]
    assert not (small / "corpus").exists()  # what was read waits beside it for a build with more room
