"""Who a sandbox runs as. Root never starts one as root: bubblewrap started by root leaves /proc/sys writable."""

from __future__ import annotations

import functools
import os
import shutil
import stat
from pathlib import Path

SANDBOX_UID = 60001
"""An id that no account has: files given to it belong to nobody else."""


def uid_gid() -> tuple[int, int]:
    """The host ids that a sandboxed process has."""
    return (SANDBOX_UID, SANDBOX_UID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


@functools.cache
def tool(name: str) -> str | None:
    """Full path of a system program; the system folders first, so that a user's PATH cannot swap it."""
    return shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin") or shutil.which(name)


def drop_privileges() -> list[str] | None:
    """The command prefix that gives up root, [] when we are not root, None when we cannot."""
    if os.geteuid() != 0:
        return []
    setpriv = tool("setpriv")
    if setpriv is None:
        return None
    uid, gid = uid_gid()
    return [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all", "--"]


def reachable(path: Path) -> bool:
    """Whether the sandbox's user may walk to `path` and read it."""
    uid, gid = uid_gid()
    path = path.resolve()
    for step in [*reversed(path.parents), path]:
        try:
            info = step.stat()
        except OSError:
            return False
        shift = 6 if info.st_uid == uid else 3 if info.st_gid == gid else 0
        needed = stat.S_IXOTH | (stat.S_IROTH if step == path else 0)
        if (info.st_mode >> shift) & needed != needed:
            return False
    return True
