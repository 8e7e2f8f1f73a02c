"""A run folder: what one run decided, measured and finished, in files that survive a kill at any moment.

    recipe.toml  manifest.json  metrics.jsonl  summary.json  report.html
    checkpoints/  model/  episodes/  media/  stages/NAME.json  stages/NAME.started.json

Metrics are appended, not rewritten. A stage that resumes from a checkpoint cuts the lines that were written after that
checkpoint, so that every step appears once: `start_stage` remembers where a stage's lines begin, `metrics_position`
goes into the checkpoint, and `rewind_metrics` cuts.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overland.errors import BrokenFileError, OverlandError
from overland.runs.atomic import atomic_write, explain_disk_errors, read_json, sha256_file, write_json

_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "pydantic", "pyarrow", "zstandard")


class RunFolder:
    """The folder of one run. Opening it creates it; nothing else is written until something is recorded.

    With `writes` off every rank but the first opens it: it reads, and what it is asked to record is left to rank 0.
    """

    def __init__(self, path: str | Path, *, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes
        if self.path.exists() and not self.path.is_dir():
            raise OverlandError(f"{self.path}: is a file, a run needs a folder. Choose another --out.")
        with explain_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._mended = False

    # ---- places

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    # ---- metrics

    def metrics(self, step: dict[str, Any]) -> None:
        """Append one object as one line, in one write, so that a kill leaves whole lines and at most one torn tail.

        NaN and infinities are written as null: JSON has no word for them and a browser would refuse the file.
        """
        if not self.writes:
            return
        self._mend()
        line = json.dumps(_finite(step), ensure_ascii=False, allow_nan=False) + "\n"
        with explain_disk_errors(self.metrics_path):
            descriptor = os.open(self.metrics_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                data = line.encode()
                start = os.fstat(descriptor).st_size
                if os.write(descriptor, data) != len(data):  # a nearly full disk takes part of a line
                    os.truncate(descriptor, start)
                    os.write(descriptor, data)
            finally:
                os.close(descriptor)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines, oldest first. A torn last line is left out; a broken line elsewhere is an error."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")
        rows = []
        for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn or empty
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise BrokenFileError(
                    f"{self.metrics_path}: line {number} is not JSON ({error}). "
                    "Delete that line, or run again without --resume."
                ) from error
        return rows

    def metrics_position(self) -> int:
        """Bytes of whole lines so far. Kept in checkpoints, handed to `rewind_metrics` when one is loaded."""
        self._mend()
        return self.metrics_path.stat().st_size if self.metrics_path.exists() else 0

    def rewind_metrics(self, position: int) -> None:
        """Cut every line after `position` bytes: they were written after the state that is being resumed."""
        if not self.writes:
            return
        size = self.metrics_position()
        if position > size:
            raise BrokenFileError(
                f"{self.metrics_path}: has {size} bytes, the state to resume from was saved at {position}. "
                "Lines were lost; run again without --resume."
            )
        if position < size:
            os.truncate(self.metrics_path, position)

    def _mend(self) -> None:
        """Cut a torn last line, once, before the first write of this process."""
        if self._mended or not self.writes:
            return
        self._mended = True
        if not self.metrics_path.exists():
            return
        data = self.metrics_path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(self.metrics_path, whole)

    # ---- manifest

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write manifest.json: what the caller knows (seeds, input hashes, licences) and the versions that ran."""
        versions = {}
        for name in _PACKAGES:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        from overland import __version__

        ours = {"overland": __version__, "python": platform.python_version(), "packages": versions}
        write_json(self.path / "manifest.json", {**ours, **manifest})

    def read_manifest(self) -> dict[str, Any]:
        return read_json(self.path / "manifest.json")

    # ---- stages

    def start_stage(self, name: str) -> int:
        """Say that a stage begins (again). Returns where its metrics lines start, for `rewind_metrics`.

        A stage that runs again is no longer done, and neither is any stage that finished after it: their inputs
        are about to change.
        """
        if not self.writes:
            return 0
        done = self._stage_file(name)
        if done.exists():
            order = read_json(done).get("order", 0)
            for file in self._finished():
                if read_json(file).get("order", 0) >= order:
                    file.unlink()
        marker = self.path / "stages" / f"{name}.started.json"
        if marker.exists():
            return min(int(read_json(marker)["metrics_bytes"]), self.metrics_position())
        position = self.metrics_position()
        write_json(marker, {"metrics_bytes": position})
        return position

    def finish_stage(self, name: str, outputs: dict[str, Any], files: Iterable[str | Path] = ()) -> None:
        """Record that a stage is done, with what it hands on.

        `outputs` is plain JSON data. A Path in it, a string that names an existing file or folder inside the run
        folder, and everything in `files` are outputs on disk: their SHA-256 is recorded and checked by `stage_done`.
        Do not list what a later stage rewrites. Paths inside the run folder are kept relative to it.
        """
        if not self.writes:
            return
        plain: dict[str, Any] = {}
        listed: list[Path] = [Path(f) for f in files]
        for key, value in outputs.items():
            plain[key] = _plain(value, self.path, listed)
        hashes = {}
        for file in listed:
            full = self.path / file
            if not full.exists():
                raise OverlandError(f"{full}: stage {name} says it wrote this, but it is not there.")
            for part in _files_under(full):
                hashes[_relative(part, self.path)] = sha256_file(part)
        order = 1 + max((read_json(f).get("order", 0) for f in self._finished()), default=0)
        record = {"stage": name, "order": order, "metrics_bytes": self.metrics_position(), "outputs": plain}
        write_json(self._stage_file(name), {**record, "sha256": hashes})

    def stage_done(self, name: str) -> dict[str, Any] | None:
        """The outputs of a finished stage, or None. Raises BrokenFileError when one of its files is not as recorded."""
        file = self._stage_file(name)
        if not file.exists():
            return None
        record = read_json(file)
        try:
            outputs, hashes = record["outputs"], dict(record["sha256"])
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenFileError(
                f"{file}: is not a stage record. Delete it to redo the stage, or run again without --resume."
            ) from error
        for part, expected in hashes.items():
            path = self.path / part
            found = sha256_file(path) if path.is_file() else "nothing"
            if found != expected:
                state = "is missing" if found == "nothing" else "has changed or is damaged"
                raise BrokenFileError(
                    f"{path}: {state} since stage {name} wrote it. "
                    f"Delete {file} to redo that stage, or run again without --resume."
                )
        return outputs

    def write(self, name: str, data: bytes | str) -> Path:
        """Write a file of the run by its relative name, atomically; returns its path."""
        atomic_write(self.path / name, data)
        return self.path / name

    def put_media(self, data: bytes) -> str:
        """Keep an image or another binary part of an episode under its SHA-256; returns that hash."""
        digest = hashlib.sha256(data).hexdigest()
        target = self.path / "media" / digest
        if not target.exists():
            atomic_write(target, data)
        return digest

    def _stage_file(self, name: str) -> Path:
        return self.path / "stages" / f"{name}.json"

    def _finished(self) -> list[Path]:
        folder = self.path / "stages"
        return sorted(f for f in folder.glob("*.json") if not f.name.endswith(".started.json") and f.name[0] != ".")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any, root: Path, listed: list[Path]) -> Any:
    """JSON data for `value`; paths found on the way are added to `listed` and become strings relative to `root`."""
    if isinstance(value, Path):
        name = _relative(value, root)
        listed.append(Path(name))
        return name
    if isinstance(value, str) and value and len(value) < 400 and "\n" not in value and not Path(value).is_absolute():
        if (root / value).exists() and (root / value).resolve() != root.resolve():
            listed.append(Path(value))
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v, root, listed) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, root, listed) for v in value]
    return value


def _relative(path: Path, root: Path) -> str:
    path = Path(path)
    if path.is_absolute() or path.exists():
        try:
            return path.resolve().relative_to(root.resolve()).as_posix()
        except ValueError:
            return str(path.resolve())
    return path.as_posix()


def _files_under(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.endswith(".tmp"))
