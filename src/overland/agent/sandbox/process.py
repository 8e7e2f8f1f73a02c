"""No sandbox at all: a plain process with rlimits. Only for `--no-sandbox`, and it says so every time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from overland.agent.sandbox import rlimits
from overland.agent.sandbox.base import Capabilities, Launch, Sandbox, SandboxLimits
from overland.agent.sandbox.identity import drop_privileges
from overland.errors import UsageError

WARNING = (
    "overland: WARNING: --no-sandbox: commands written by the model run on this machine with your network and your "
    "files. Use it only where nothing can be lost."
)


class Process(Sandbox):
    """Runs commands as ordinary processes in the work directory (under an unprivileged user where we are root)."""

    name = "process"

    def __init__(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise UsageError("running commands needs Linux 5.3 or later: use a Linux machine, container or VM")
        print(WARNING, file=sys.stderr, flush=True)
        self._prefix = drop_privileges() or []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(False, "host", bool(self._prefix), False, rlimits.enforced())

    def inside(self, workdir: Path) -> str:
        return str(workdir)

    def launch(self, argv: Sequence[str], workdir: Path | None, limits: SandboxLimits) -> Launch:
        home = str(workdir) if workdir else "/"
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb"}
        return Launch((*self._prefix, *argv), cwd=home, env=env)
