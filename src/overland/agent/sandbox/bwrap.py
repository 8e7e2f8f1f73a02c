"""bubblewrap: the default backend. Own root, no network, nothing of /etc or /home, no capability, a syscall filter."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

from overland.agent.sandbox import rlimits, seccomp
from overland.agent.sandbox.base import Capabilities, Launch, Sandbox, SandboxLimits
from overland.agent.sandbox.identity import drop_privileges, tool
from overland.agent.sandbox.layout import ENVIRONMENT, GROUP, PASSWD, system_folders
from overland.errors import OverlandError


@functools.cache
def version() -> tuple[int, ...]:
    """bubblewrap's version, () where there is none."""
    path = tool("bwrap")
    if path is None:
        return ()
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, env={}).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(int(part) for part in said.split()[-1].split(".") if part.isdigit()) or (0,)


class Bwrap(Sandbox):
    """bubblewrap, started as an ordinary user."""

    name = "bwrap"

    def __init__(self) -> None:
        path, drop = tool("bwrap"), drop_privileges()
        if path is None:
            raise OverlandError("bubblewrap is not installed (package bubblewrap)")
        if drop is None:
            raise OverlandError(
                "we are root and setpriv (package util-linux) is missing: root must not start bubblewrap"
            )
        self._prefix = [*drop, path]
        self._filter = seccomp.program()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(True, "none", True, self._filter is not None, rlimits.enforced())

    def launch(self, argv: Sequence[str], workdir: Path | None, limits: SandboxLimits) -> Launch:
        data = [PASSWD, GROUP]
        words = ["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
        words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        if version() >= (0, 8):
            words.append("--disable-userns")
        for name, value in ENVIRONMENT.items():
            words += ["--setenv", name, value]
        for path, target in system_folders():
            words += ["--symlink", target, path] if target else ["--ro-bind", path, path]
        words += ["--ro-bind-data", "{fd[0]}", "/etc/passwd", "--ro-bind-data", "{fd[1]}", "/etc/group"]
        words += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--proc", "/proc", "--dev", "/dev"]
        words += ["--ro-bind", "/proc/sys", "/proc/sys"]  # settings of its own namespaces would be writable
        for path in ("/dev/shm", "/tmp"):  # without a size they could take all the memory there is
            words += ["--size", str(limits.tmp_bytes), "--tmpfs", path]
        words += ["--dir", "/work"] if workdir is None else ["--bind", str(workdir), "/work"]
        if self._filter is not None:
            words += ["--seccomp", "{fd[2]}"]
            data.append(self._filter)
        words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work"]
        return Launch((*self._prefix, "--args", "{options}", "--", *argv), tuple(words), tuple(data))
