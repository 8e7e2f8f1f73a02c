"""What a sandbox's own root holds: the system's programs read-only, two generated files of /etc, nothing else."""

from __future__ import annotations

import os

PASSWD = b"agent:x:1000:1000:agent:/work:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP = b"agent:x:1000:\nnogroup:x:65534:\n"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/work",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "USER": "agent",
}


def system_folders() -> list[tuple[str, str | None]]:
    """(/bin, "usr/bin") where the machine has a link, (/usr, None) where it has a folder to bind."""
    found: list[tuple[str, str | None]] = []
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            found.append((name, os.readlink(name)))
        elif os.path.isdir(name):
            found.append((name, None))
    return found
