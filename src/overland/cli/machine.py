"""The facts behind `overland doctor`. Reads and probes, changes nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

EXTRAS = {
    "clients": (("openai", "anthropic"), "checking a served model with the real clients"),
    "vision": (("PIL",), "pictures as a model's input"),
    "gguf": (("gguf",), "exporting models for llama.cpp"),
    "gpu": (("fla", "triton"), "kernels for NVIDIA GPUs"),
    "dev": (("pytest", "hypothesis", "ruff", "mypy"), "tests and lint"),
    "docs": (("mkdocs",), "the documentation as a site"),
}
QUICKSTART_MEMORY = 4 << 30
QUICKSTART_DISK = 2 << 30


@dataclass(frozen=True)
class Extra:
    """One optional group of packages."""

    name: str
    state: str
    what: str


@dataclass(frozen=True)
class SandboxState:
    """How a backend did: attacks withstood, attacks tried, and what that means."""

    held: int
    tried: int
    verdict: str


@dataclass
class Machine:
    """`blocking`: what keeps the quickstart from running. `missing`: that and everything else worth getting."""

    facts: dict[str, str] = field(default_factory=dict)
    extras: list[Extra] = field(default_factory=list)
    sandboxes: dict[str, SandboxState] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    blocking: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def block(self, line: str) -> None:
        self.blocking.append(line)
        self.missing.append(line)


def look(folder: Path) -> Machine:
    """Look at this machine; `folder` names the disk that runs will be written to."""
    found = Machine()
    _system(found, folder)
    _torch(found)
    _corpus_loops(found)
    _extras(found)
    _sandboxes(found)
    return found


def _system(found: Machine, folder: Path) -> None:
    from overland import __version__

    found.facts["overland"] = __version__
    found.facts["python"] = f"{platform.python_version()} ({sys.executable})"
    found.facts["system"] = f"{platform.system()} {platform.release()} on {platform.machine()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    found.facts["processor"] = f"{cores} cores for this process{load}"
    memory = _free_memory()
    found.facts["memory"] = f"{memory / 2**30:.1f} GiB free" if memory else "unknown"
    free = shutil.disk_usage(_existing(folder)).free
    found.facts["disk"] = f"{free / 2**30:.1f} GiB free at {folder.resolve()}"
    if memory and memory < QUICKSTART_MEMORY:
        found.missing.append(f"memory: {memory / 2**30:.1f} GiB are free, a quickstart may use 4; close something")
    if free < QUICKSTART_DISK:
        found.block(f"disk: {free / 2**30:.1f} GiB are free at {folder.resolve()}, a quickstart wants 2; free some")
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.missing.append(f"python {platform.python_version()} is untested; use 3.11, 3.12 or 3.13")


def _torch(found: Machine) -> None:
    try:
        import torch
    except ImportError as error:
        found.block(f"torch cannot be loaded ({error}): pip install torch")
        return
    from overland.errors import UsageError
    from overland.kernels import compiled_state, kernel_choice

    found.facts["torch"] = torch.__version__
    asked = os.environ.get("OMP_NUM_THREADS", "")
    found.facts["threads"] = f"{torch.get_num_threads()} a process (OMP_NUM_THREADS={asked or 'unset'})"
    try:
        found.facts["kernels"] = f"{kernel_choice()} on the CPU (OVERLAND_KERNELS=reference|torch|fast, or fla on CUDA)"
        built, state = compiled_state()
        found.facts["compiled"] = state if built else "no; the torch forms run, which are slower"
        if not built:
            found.missing.append(f"compiled kernels: {state}")
    except UsageError as error:
        found.block(str(error))
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    found.facts["gpu"] = ", ".join(gpus) or "none (none is needed)"
    if gpus and not _has("triton"):
        found.missing.append("GPU kernels: pip install 'overland[gpu]'")


def _corpus_loops(found: Machine) -> None:
    from overland.corpus.compiled import library
    from overland.errors import OverlandError

    try:
        library()
        found.facts["compiled corpus"] = "yes"
    except OverlandError as error:
        found.facts["compiled corpus"] = "no; duplicates cannot be looked for"
        found.missing.append(str(error))


def _extras(found: Machine) -> None:
    for name, (modules, what) in EXTRAS.items():
        absent = [module for module in modules if not _has(module)]
        state = "yes" if not absent else "no" if len(absent) == len(modules) else f"without {', '.join(absent)}"
        found.extras.append(Extra(name, state, what))
    if any(extra.name == "clients" and extra.state != "yes" for extra in found.extras):
        found.missing.append("the served model is checked with fewer clients: pip install 'overland[clients]'")


def _sandboxes(found: Machine) -> None:
    from overland.agent.sandbox import probe_report

    works = []
    for name, results in probe_report().items():
        failed = [result for result in results if not result.held]
        held = len(results) - len(failed)
        if not failed:
            works.append(name)
            verdict = "used" if len(works) == 1 else "good, not needed"
        else:
            verdict = f"refused: {failed[0].name}: {failed[0].detail}"
        found.sandboxes[name] = SandboxState(held, len(results), verdict)
    found.facts["sandbox"] = works[0] if works else "none works"
    if not works:
        found.block(
            "a sandbox: apt install bubblewrap (or dnf install bubblewrap), or allow unprivileged user namespaces; "
            "or accept the risk with --no-sandbox"
        )


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _existing(folder: Path) -> Path:
    folder = folder.resolve()
    return next((part for part in (folder, *folder.parents) if part.is_dir()), Path("/"))


def _free_memory() -> int:
    """Bytes that a new process can have: the system's, or what its control group leaves."""
    available = 0
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        return 0
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            available = min(available, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    return max(available, 0)
