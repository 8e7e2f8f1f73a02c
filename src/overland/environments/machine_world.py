"""A file tree with modes and running programs, under a shell: the hard terminal levels."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overland.environments.commands import TRUSTED_ENVIRONMENT, Commands
from overland.environments.errands import WORKER
from overland.environments.files_world import SHELL_SPEC
from overland.environments.tool_world import Folder
from overland.environments.world import Changes, World, one_string
from overland.errors import OverlandError

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox

START_SECONDS = 10.0
LIMIT = 2_000


class MachineWorld(World):
    """`files` before; `expected` is what is new or different after; `modes` and `expected_modes` by path.

    Workers run from the start: in the sandbox for a policy, as children of this process for the oracle. Their pid files
    are not looked at; what they write when they end is.
    """

    spec = SHELL_SPEC

    def __init__(
        self,
        files: Mapping[str, str | bytes],
        expected: Mapping[str, str | bytes],
        modes: Mapping[str, int],
        expected_modes: Mapping[str, int],
        workers: tuple[str, ...],
        ended: frozenset[str],
        trusted: frozenset[str],
    ) -> None:
        """`ended`: the workers that have to be ended; the others must not be."""
        self.workers, self.ended = workers, ended
        self.modes, self.expected_modes = modes, {**modes, **expected_modes}
        own = {"bin/worker.sh": WORKER} if workers else {}
        self.folder = Folder({**files, **own})
        gone = {f"run/{name}.start" for name in ended}
        self.after = {p: c for p, c in {**self.folder.files, **expected}.items() if p not in gone}
        self.commands = Commands(trusted, LIMIT)
        self._running: list[subprocess.Popen[bytes]] = []
        self._policy = False

    def open(self) -> None:
        self.folder.open()
        for path, mode in self.modes.items():
            os.chmod(self.folder.path / path, mode)

    def close(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running = []
        self.folder.close()

    async def start(self, sandbox: Sandbox | None = None) -> None:
        await self.commands.start(sandbox, self.folder.path)
        self._policy = True
        for name in self.workers:
            await self.commands.run(f"setsid sh bin/worker.sh {name} >/dev/null 2>&1 </dev/null &")
        self._wait_for_workers()

    async def stop(self) -> None:
        await self.commands.stop()

    async def call(self, args: Mapping[str, object]) -> str:
        command = one_string(args, "cmd")
        return "error: cmd must be a string" if command is None else await self.commands.run(command)

    def call_now(self, args: Mapping[str, object]) -> str:
        if self.workers and not self._running:
            for name in self.workers:
                self._running.append(
                    subprocess.Popen(
                        ["/bin/sh", "bin/worker.sh", name], cwd=self.folder.path, env=TRUSTED_ENVIRONMENT,
                        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )  # fmt: skip
            self._wait_for_workers()
        return self.commands.run_now(one_string(args, "cmd"), self.folder.path)

    def _wait_for_workers(self) -> None:
        """Raises OverlandError where they do not come up: no task for a policy."""
        deadline = time.monotonic() + START_SECONDS
        for name in self.workers:
            path = self.folder.path / f"run/{name}.pid"
            while not (path.exists() and path.stat().st_size):
                if time.monotonic() > deadline:
                    raise OverlandError(f"the program {name} did not start")
                time.sleep(0.005)

    def put(self, files: Mapping[str, str]) -> bool:
        for path, text in files.items():
            self.folder.write(path, text)
        return True

    def changes(self) -> Changes:
        """The tree against the expected one: contents and modes. Pid files of workers do not count."""
        found = self._found()
        before, after = _encoded(self.folder.files), _encoded(self.after)
        modes = {path: _mode(self.folder.path / path) for path in self.modes if path in found}
        odd = {path for path, mode in modes.items() if mode != self.expected_modes[path]}
        altered = {path for path in after.keys() & found.keys() if after[path] != found[path]} | odd
        return Changes(
            missing=tuple(sorted(after.keys() - found.keys())),
            unexpected=tuple(sorted(found.keys() - after.keys())),
            altered=tuple(sorted(altered)),
            touched=found != before or any(mode != self.modes[path] for path, mode in modes.items()),
        )

    def _found(self) -> dict[str, bytes | None]:
        tree = self.folder.tree()
        pids = {f"run/{name}.pid" for name in self.workers}
        plain: dict[str, Any] = {path: content for path, content in tree.files.items() if path not in pids}
        return {**plain, **dict.fromkeys([*tree.links, *tree.skipped])}


def _encoded(files: Mapping[str, str | bytes]) -> dict[str, bytes | None]:
    return {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)
