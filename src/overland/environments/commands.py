"""Who may run what: the oracle's own commands in a plain /bin/sh, a policy's in a shell held open in a sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from overland.environments.world import OBSERVATION_LIMIT, clip
from overland.errors import OverlandError

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox
    from overland.agent.sandbox.shell import Shell

ENDING = {None: "error: stopped", 0: "ok"}
TRUSTED_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "PYTHONDONTWRITEBYTECODE": "1",
    # The folder belongs to the sandbox's user, and git refuses the repositories of others.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


def shell_observation(output: str, code: int | None, note: str = "", limit: int = OBSERVATION_LIMIT) -> str:
    """What a command printed, or how it ended when it printed nothing; a note of the sandbox comes last."""
    shown = clip(output, limit) or ENDING.get(code, f"error: exit {code}")
    return f"{shown} [{note}]" if note else shown


class Commands:
    """`trusted` are the oracle's commands, word for word: nothing else runs outside a sandbox."""

    def __init__(self, trusted: frozenset[str], limit: int = OBSERVATION_LIMIT) -> None:
        self.trusted, self.limit = trusted, limit
        self._shell: Shell | None = None

    async def start(self, sandbox: Sandbox | None, folder: Path) -> None:
        """Open the policy's shell in `folder`. Raises OverlandError without a sandbox."""
        if sandbox is None:
            raise OverlandError("a policy's commands need a sandbox: pass one to open_world")
        self._shell = await sandbox.open_shell(folder)

    async def stop(self) -> None:
        if self._shell is not None:
            await self._shell.close()
            self._shell = None

    async def run(self, command: str, seconds: float | None = None) -> str:
        """The observation of a policy's command. Raises OverlandError where `start` was not called."""
        if self._shell is None:
            raise OverlandError("this world has no sandbox: open it with `async with task.open_world(sandbox)`")
        result = await self._shell.run(command, seconds, output_bytes=max(2_000, 2 * self.limit))
        return shell_observation(result.text, result.rc, result.note, self.limit)

    def run_now(self, command: str | None, folder: Path) -> str:
        """The observation of the oracle's command. Raises OverlandError for any other."""
        if command not in self.trusted:
            raise OverlandError(f"command {command!r} is not one of the oracle's: run it in a sandbox")
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=TRUSTED_ENVIRONMENT,
            timeout=30,
            check=False,
        )
        return shell_observation(done.stdout.decode("utf-8", "replace"), done.returncode, limit=self.limit)
