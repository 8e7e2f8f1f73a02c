"""The limits every process carries by itself, and the stand-ins where no control group can be made."""

from __future__ import annotations

from overland.agent.sandbox.base import SandboxLimits
from overland.agent.sandbox.cgroup import hierarchy


def outer(limits: SandboxLimits) -> str:
    """Shell words run before the sandbox exists. Hard limits: nothing inside can raise them again."""
    words = [
        "ulimit -c 0",
        f"ulimit -f {limits.file_bytes // 512}",  # POSIX: blocks of 512 bytes
        f"ulimit -t {limits.cpu_seconds}",
        f"ulimit -n {limits.open_files}",
    ]
    if not hierarchy().memory:
        words.append(f"ulimit -v {limits.memory_bytes // 1024}")
    return " && ".join(words)


def inner(limits: SandboxLimits) -> str:
    """Shell words run first inside: a process count set after the user namespace was made counts only what is in it.

    (Linux 5.14 and later; before that the count is per user over all sandboxes.)
    """
    if hierarchy().pids:
        return ":"
    return f"ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes} || exit 125"


def enforced(inner_process_limit: bool = True) -> dict[str, str]:
    """Limit name -> mechanism, for the capability record."""
    where = hierarchy()
    return {
        "memory": where.describe("memory") or "rlimit AS, each process",
        "processes": where.describe("pids") or ("rlimit NPROC" if inner_process_limit else "not enforced"),
        "cpu": "rlimit CPU, each process",
        "file size": "rlimit FSIZE",
        "open files": "rlimit NOFILE",
        "time": "deadline for each command",
        "output": "cut while it is read",
    }
