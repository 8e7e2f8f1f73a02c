"""What holds for every test: one torch thread, and no deadline on a Hypothesis example."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Two threads on a busy two-core machine were measured many times slower than one.
torch.set_num_threads(1)

# Machines that run tests are busy; how long an example takes says nothing about what holds.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background is started with Ctrl-C ignored, and so would be every program that is tested here.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`small_disk("128k")` is a folder on a disk of that size; skips where none can be mounted."""
    place = tmp_path / "small"
    mounted = []

    def mount(size: str) -> Path:
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        may = os.geteuid() == 0 and shutil.which("mount")
        if not may or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("no small disk can be mounted here")
        mounted.append(place)
        return place

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)
