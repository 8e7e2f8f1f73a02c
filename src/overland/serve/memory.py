"""How much memory the device has and uses: the GPU's where there is one, else this process's share of the machine's."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch


def memory_bytes() -> dict[str, int]:
    """used, free and total bytes."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return {"used": total - free, "free": free, "total": total}
    total, used = _limit(), _resident()
    return {"used": used, "free": max(0, total - used), "total": total}


def memory_usage() -> float:
    """Share in use, 0 to 1."""
    now = memory_bytes()
    return now["used"] / now["total"] if now["total"] else 0.0


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@lru_cache(maxsize=1)
def _limit() -> int:
    """The control group's limit, or the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(machine, int(Path(file).read_text()))
        except (OSError, ValueError):
            continue
    return machine
