"""Linux namespaces through util-linux alone, for machines without bubblewrap.

An ordinary user becomes root of a new user namespace (unshare), builds a root of its own there out of read-only binds
(one `mount -a`), moves into it (pivot_root), and gives every capability up again (setpriv) before the first command.
Slower to start than bubblewrap and without a syscall filter; the record says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from overland.agent.sandbox import rlimits
from overland.agent.sandbox.base import Capabilities, Launch, Sandbox, SandboxLimits
from overland.agent.sandbox.identity import drop_privileges, tool
from overland.agent.sandbox.layout import ENVIRONMENT, system_folders
from overland.errors import OverlandError

PROGRAMS = ("setpriv", "unshare", "mount", "umount", "pivot_root", "env")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
PASSWD = "root:x:0:0:agent:/work:/bin/sh"
GROUP = "root:x:0:"


class Userns(Sandbox):
    """unshare, mount, pivot_root and setpriv of util-linux, started as an ordinary user."""

    name = "userns"

    def __init__(self) -> None:
        missing = [name for name in PROGRAMS if tool(name) is None]
        if missing:
            raise OverlandError(f"util-linux programs are missing: {', '.join(missing)}")
        drop = drop_privileges()
        assert drop is not None  # setpriv is there
        setpriv = str(tool("setpriv"))
        # The runtime's death must reach the outermost process too: unshare passes it on with --kill-child.
        self._prefix = [*(drop[:-1] or [setpriv]), "--pdeathsig=KILL", "--"]
        self._stage = next((path for path in ("/mnt", "/media", "/srv", "/opt") if Path(path).is_dir()), "/tmp")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(True, "none", True, False, rlimits.enforced())

    def launch(self, argv: Sequence[str], workdir: Path | None, limits: SandboxLimits) -> Launch:
        unshare = [str(tool("unshare")), "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
        unshare += ["--net", "--ipc", "--uts", "--cgroup", "/bin/sh", "-c"]
        script = self._script(workdir, limits)
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return Launch((*self._prefix, *unshare, script, "sh", *argv), env=env)

    def _mounts(self, workdir: Path | None, limits: SandboxLimits) -> str:
        """The table for `mount -a`: what is bound or mounted below the stage, in order."""
        stage, quiet = self._stage, "nosuid,nodev"
        lines = [f"{path} {stage}{path} none bind,ro,{quiet}" for path, link in system_folders() if link is None]
        if Path("/etc/alternatives").is_dir():
            lines.append(f"/etc/alternatives {stage}/etc/alternatives none bind,ro,{quiet}")
        lines += [f"/dev/{name} {stage}/dev/{name} none bind" for name in DEVICES]
        lines += [f"tmpfs {stage}{path} tmpfs size={limits.tmp_bytes},{quiet}" for path in ("/dev/shm", "/tmp")]
        lines.append(f"proc {stage}/proc proc {quiet},noexec")
        lines.append(f"{stage}/proc/sys {stage}/proc/sys none bind,ro,{quiet},noexec")
        if workdir is not None:
            lines.append(f"{_escape(str(workdir))} {stage}/work none bind,{quiet}")
        return "".join(f"{line} 0 0\n" for line in lines)

    def _script(self, workdir: Path | None, limits: SandboxLimits) -> str:
        """Runs as root of the new namespaces, before anything of the model's."""
        folders = [f".{path}" for path, link in system_folders() if link is None]
        links = [link for _, link in system_folders() if link is not None]
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in ENVIRONMENT.items() if name != "USER")
        devices = " ".join(f"dev/{name}" for name in DEVICES)
        return f"""set -e
mount -t tmpfs -o size=1m,mode=755,nosuid,nodev root {self._stage}
cd {self._stage}
mkdir -p {" ".join(folders)} etc/alternatives dev/shm proc tmp work old
{f"ln -s {' '.join(links)} ." if links else ":"}
for f in {devices}; do : >$f; done
ln -s /proc/self/fd dev/fd
echo {shlex.quote(PASSWD)} >etc/passwd
echo {shlex.quote(GROUP)} >etc/group
echo 0 >/proc/sys/user/max_user_namespaces
cat >table <<'END'
{self._mounts(workdir, limits)}END
mount -a -T table
rm table
pivot_root . old
cd /
umount -l /old
rmdir /old
mount -o remount,bind,ro,nosuid,nodev /
cd /work
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- env -i {environment} "$@" """

    def inside(self, workdir: Path) -> str:
        return "/work"


def _escape(path: str) -> str:
    """A path in a mount table: blanks and backslashes as octal."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in path)
