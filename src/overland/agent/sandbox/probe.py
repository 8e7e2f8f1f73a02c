"""Attacks on a sandbox from inside, judged from outside. A backend is used only if every one of them fails.

The list follows what was found open in common set-ups: bubblewrap started by root leaves /proc/sys writable and root's
files readable; binding / shows host sockets; /proc/1/environ holds the caller's secrets; /dev/shm has no size.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from overland.agent.sandbox.base import Sandbox, SandboxLimits
from overland.agent.sandbox.shell import Shell
from overland.agent.sandbox.workdir import Workdir

MIB = 1 << 20
SMALL = SandboxLimits(
    memory_bytes=48 * MIB,
    processes=12,
    file_bytes=16 * MIB,
    tmp_bytes=8 * MIB,
    output_bytes=4096,
    flood_bytes=4 * MIB,
    command_seconds=60.0,  # a tenth is enough, but a machine that others keep busy must not be taken for one without
)
NAMESPACES = ("net", "pid", "mnt", "ipc", "uts", "user")
FORBIDDEN = (
    "/",
    "/etc",
    "/usr",
    "/usr/bin",
    "/bin/",
    "/lib/",
    "/var",
    "/home",
    "/root",
    "/run",
    "/proc",
    "/sys",
    "/dev",
)


@dataclass(frozen=True)
class ProbeResult:
    """One attack. `held` is True where the sandbox withstood it; `detail` says what was seen."""

    name: str
    held: bool
    detail: str


@dataclass(frozen=True)
class Bait:
    """What the host holds that nothing inside may reach."""

    folder: Path
    secret: Path
    unix_socket: Path
    port: int
    tcp: socket.socket
    unix: socket.socket
    marker: str

    def visitors(self) -> list[str]:
        """Which listeners somebody connected to."""
        found = []
        for name, listener in (("loopback", self.tcp), ("unix socket", self.unix)):
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                found.append(name)
        return found


@contextlib.contextmanager
def bait() -> Iterator[Bait]:
    """A root-only file, an open unix socket, a listener on the loopback and a secret in the environment."""
    marker = f"overland-{secrets.token_hex(8)}"
    folder = Path(tempfile.mkdtemp(prefix="overland-probe-"))
    folder.chmod(0o755)
    secret, path = folder / "secret", folder / "socket"
    secret.write_text(marker)
    secret.chmod(stat.S_IRUSR | stat.S_IWUSR)
    os.environ["OVERLAND_PROBE_SECRET"] = marker
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        try:
            tcp.bind(("127.0.0.1", 0))
            unix.bind(str(path))
            path.chmod(0o777)
            for listener in (tcp, unix):
                listener.listen()
                listener.setblocking(False)
            yield Bait(folder, secret, path, tcp.getsockname()[1], tcp, unix, marker)
        finally:
            os.environ.pop("OVERLAND_PROBE_SECRET", None)
            shutil.rmtree(folder, ignore_errors=True)


async def probe(sandbox: Sandbox) -> list[ProbeResult]:
    """Runs every probe. A backend that does not even start gives one result, "starts"."""
    try:
        with bait() as host, Workdir() as work:
            async with await sandbox.open_shell(
                work.path, replace(SMALL, memory_bytes=128 * MIB, processes=32)
            ) as shell:
                results = [ProbeResult("starts", True, sandbox.name)]
                results.append(_unprivileged(shell))
                results += [await check(shell, host) for check in (_network, _own_root, _secrets, _proc_sys, _writes)]
                results.append(await _privileges(shell))
            for attack in (_memory, _scratch, _file_size, _processes, _time, _output):
                async with await sandbox.open_shell(work.path, SMALL) as shell:
                    results.append(await attack(shell))
            return results
    except Exception as error:
        return [ProbeResult("starts", False, f"{type(error).__name__}: {error}")]


async def _say(shell: Shell, script: str, timeout: float | None = None) -> str:
    return (await shell.run(script, timeout)).text.strip()


def _unprivileged(shell: Shell) -> ProbeResult:
    pid = shell.pid
    owner = Path(f"/proc/{pid}").stat().st_uid if pid else 0
    return ProbeResult("started unprivileged", owner != 0, f"host user id {owner}")


async def _network(shell: Shell, host: Bait) -> ProbeResult:
    outside = os.readlink("/proc/self/ns/net")
    inside = await _say(shell, "readlink /proc/self/ns/net")
    devices = await _say(shell, "sed -n '3,$s/:.*//p' /proc/net/dev | tr -d ' ' | tr '\\n' ' '")
    await shell.run(
        f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{host.port}' || perl -MIO::Socket::INET -e "
        f"'IO::Socket::INET->new(\"127.0.0.1:{host.port}\")' || python3 -c "
        f"'import socket; socket.create_connection((\"127.0.0.1\", {host.port}), 1)'"
    )
    visitors = host.visitors()
    held = bool(inside) and inside != outside and devices.split() in ([], ["lo"]) and not visitors
    return ProbeResult("no network", held, f"devices: {devices or 'none'}; reached: {', '.join(visitors) or 'nothing'}")


async def _own_root(shell: Shell, host: Bait) -> ProbeResult:
    seen = []
    if host.marker in await _say(shell, f"cat {host.secret}"):
        seen.append("a root-only file")
    await shell.run(
        f"perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(\"{host.unix_socket}\")' || "
        f"python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{host.unix_socket}\")'"
    )
    if await _say(shell, f"[ -e {host.unix_socket} ] && echo yes") or "unix socket" in host.visitors():
        seen.append("a unix socket")
    if await _say(shell, "[ -r /etc/shadow ] && echo yes"):
        seen.append("/etc/shadow")
    for name in NAMESPACES:
        if await _say(shell, f"readlink /proc/self/ns/{name}") in ("", os.readlink(f"/proc/self/ns/{name}")):
            seen.append(f"the host's {name} namespace")
    return ProbeResult("own root", not seen, f"reached: {', '.join(seen) or 'nothing of the host'}")


async def _secrets(shell: Shell, host: Bait) -> ProbeResult:
    everything = "{ env; cat /proc/[0-9]*/environ; } 2>/dev/null"
    found = await _say(shell, f"{everything} | tr '\\0' '\\n' | grep -c {host.marker}")
    return ProbeResult("no host secrets", found == "0", f"the caller's environment was seen {found} times")


async def _proc_sys(shell: Shell, host: Bait) -> ProbeResult:
    script = """
    for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/overcommit_memory \
             /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/modprobe /proc/sysrq-trigger; do
        ( : >>"$f" ) 2>/dev/null && echo "$f"
    done
    find /proc/sys /sys -type f -writable 2>/dev/null | head -5"""
    found = " ".join((await _say(shell, script)).split())
    return ProbeResult("/proc/sys not writable", not found, f"writable: {found or 'nothing'}")


async def _writes(shell: Shell, host: Bait) -> ProbeResult:
    name = f"{host.marker}-write"
    places = " ".join((*FORBIDDEN, str(host.folder), str(host.folder.parent)))
    script = f'for d in {places}; do ( : >"$d/{name}" ) 2>/dev/null && echo "$d"; done; :'
    made = (await _say(shell, script)).split()
    # The sandbox's own /tmp may be written; what counts is whether the host's was.
    private = {"/tmp", "/dev/shm"}
    escaped = [d for d in made if d not in private]
    watched = dict.fromkeys((host.folder, host.folder.parent, Path("/tmp"), Path("/dev/shm")))
    outside = [str(folder) for folder in watched if (folder / name).exists()]
    for place in outside:
        (Path(place) / name).unlink()
    own = await _say(shell, "echo mine >/work/mine 2>/dev/null || echo mine >mine; cat mine")
    held = not escaped and not outside and own == "mine"
    return ProbeResult(
        "writes only in the work directory", held, f"written: {', '.join(escaped + outside) or 'nothing'}"
    )


async def _privileges(shell: Shell) -> ProbeResult:
    status = await _say(shell, "grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status")
    values = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    mounted = await _say(
        shell, "unshare --user --map-root-user --mount mount -t tmpfs x /tmp 2>/dev/null && echo mounted"
    )
    none = all(int(values.get(name, "1"), 16) == 0 for name in ("CapEff", "CapPrm"))
    held = none and values.get("NoNewPrivs") == "1" and not mounted
    switch = "off" if values.get("NoNewPrivs") == "1" else "on"
    seen = f"capabilities {values.get('CapEff', '?')}, new privileges {switch}"
    return ProbeResult("no privileges", held, seen + (", could mount in a new namespace" if mounted else ""))


async def _memory(shell: Shell) -> ProbeResult:
    asked = 200_000_000
    result = await shell.run(f"head -c {asked} /dev/zero | tail | wc -c")
    if result.limit_hit == "time":
        return ProbeResult("memory limit", False, f"no answer in {result.duration:.0f} s: the machine is too busy")
    got = result.text
    passed = next((int(word) for word in got.split() if word.isdigit()), asked)
    seen = f"{passed} of {asked} bytes passed through a buffer, the limit is {SMALL.memory_bytes >> 20} MiB"
    return ProbeResult("memory limit", passed < SMALL.memory_bytes, seen)


async def _scratch(shell: Shell) -> ProbeResult:
    sizes = []
    for place in ("/tmp", "/dev/shm"):
        fill = f"for i in 1 2 3 4; do head -c 6000000 /dev/zero >{place}/probe$i; done 2>/dev/null"
        said = await _say(shell, f"{fill}; cat {place}/probe* | wc -c; rm -f {place}/probe*")
        sizes.append(int(said) if said.isdigit() else 0)
    return ProbeResult(
        "scratch space limit", max(sizes) <= SMALL.tmp_bytes, f"/tmp {sizes[0]}, /dev/shm {sizes[1]} bytes"
    )


async def _file_size(shell: Shell) -> ProbeResult:
    said = await _say(shell, "( head -c 30000000 /dev/zero >big ) 2>/dev/null; wc -c <big; rm -f big")
    size = next((int(word) for word in said.split() if word.isdigit()), 1 << 60)
    return ProbeResult("file size limit", size <= SMALL.file_bytes, f"{size} of 30000000 bytes")


async def _processes(shell: Shell) -> ProbeResult:
    # A fork that fails ends the command, so the lines are the processes that there could be at once.
    result = await shell.run("i=0; while [ $i -lt 60 ]; do sleep 20 & echo started; i=$((i+1)); done", 5.0)
    started = result.text.count("started\n")
    return ProbeResult("process limit", 0 < started <= SMALL.processes + 4, f"{started} of 60 processes started")


async def _time(shell: Shell) -> ProbeResult:
    number = secrets.randbelow(10**9)
    result = await shell.run(f"setsid sleep 77.{number} & trap '' TERM INT HUP; sleep 78.{number}", 0.3)
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and f".{number}".encode() in _command_of(pid)]
    held = result.limit_hit == "time" and result.duration < 20 and not left  # of 77
    return ProbeResult("time limit", held, f"stopped after {result.duration:.2f} s, {len(left)} processes left")


def _command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def _output(shell: Shell) -> ProbeResult:
    result = await shell.run("yes")
    kept = len(result.stdout)
    held = result.limit_hit == "output" and result.truncated and kept < SMALL.output_bytes + 200
    return ProbeResult("output limit", held, f"{kept} of {result.bytes_total} bytes kept")
