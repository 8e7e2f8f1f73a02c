"""The run folder: atomic files, metrics, finished stages, progress bars and compressed JSON lines."""

from __future__ import annotations

from overland.runs.atomic import (
    atomic_write,
    explain_disk_errors,
    read_json,
    remove_unfinished,
    replace_folder,
    sha256_file,
    write_json,
)
from overland.runs.folder import RunFolder
from overland.runs.interrupt import Interrupt, deferred_interrupt
from overland.runs.jsonl import read_jsonl_zst, write_jsonl_zst
from overland.runs.memory import peak_bytes, restart_peak
from overland.runs.progress import Deadline, Progress, progress

__all__ = [
    "Deadline",
    "Interrupt",
    "Progress",
    "RunFolder",
    "atomic_write",
    "deferred_interrupt",
    "explain_disk_errors",
    "peak_bytes",
    "progress",
    "read_json",
    "read_jsonl_zst",
    "remove_unfinished",
    "replace_folder",
    "restart_peak",
    "sha256_file",
    "write_json",
    "write_jsonl_zst",
]
