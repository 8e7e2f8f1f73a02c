"""The most memory that this process has held at once, since a moment that the caller chooses."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def restart_peak() -> None:
    """Measure from now on. Where the system cannot (only Linux can), `peak_bytes` goes on from the process's start."""
    with suppress(OSError):
        _CLEAR.write_text("5")


def peak_bytes() -> int:
    """Resident bytes at the highest point. Pages that processes share count in each of them."""
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
