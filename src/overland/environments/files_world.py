"""A folder of small text files under the machine's own /bin/sh; what counts at the end is the tree that is left."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from overland.environments.world import Changes, World, clip, one_string, tool_spec
from overland.errors import OverlandError

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox
    from overland.agent.sandbox.shell import Shell
    from overland.agent.sandbox.workdir import Tree, Workdir

SHELL_SPEC = tool_spec("sh", "run a shell command", "cmd")
MAX_FILES = 500
"""Entries of the final tree that are looked at: far more than any task has."""
MAX_BYTES = 1 << 20
OUTPUT_BYTES = 2_000
ENDING = {None: "error: stopped", 0: "ok"}


def shell_observation(output: str, code: int | None, note: str = "") -> str:
    """What a command printed, or how it ended when it printed nothing; a note of the sandbox comes last."""
    shown = clip(output) or ENDING.get(code, f"error: exit {code}")
    return f"{shown} [{note}]" if note else shown


class FilesWorld(World):
    """`files` maps each path to its content before, `expected` after. Folders exist exactly where files are, before.

    The oracle's own commands (`trusted`) run in a plain /bin/sh in the folder. A policy's commands never do: they go
    through a shell in a sandbox, held open for the episode.
    """

    spec = SHELL_SPEC

    def __init__(self, files: Mapping[str, str], expected: Mapping[str, str], trusted: frozenset[str]) -> None:
        self.files, self.expected, self.trusted = dict(files), dict(expected), trusted
        self.folders = {path.rsplit("/", 1)[0] for path in self.files if "/" in path}
        self.workdir: Workdir | None = None
        self._shell: Shell | None = None

    def open(self) -> None:
        from overland.agent.sandbox.workdir import Workdir

        self.workdir = Workdir(self.files)

    def close(self) -> None:
        if self.workdir is not None:
            self.workdir.close()
            self.workdir = None

    async def start(self, sandbox: Sandbox | None = None) -> None:
        if sandbox is None:
            raise OverlandError("a policy's commands need a sandbox: pass one to open_world")
        assert self.workdir is not None
        self._shell = await sandbox.open_shell(self.workdir.path)

    async def stop(self) -> None:
        if self._shell is not None:
            await self._shell.close()
            self._shell = None

    async def call(self, args: Mapping[str, object]) -> str:
        command = one_string(args, "cmd")
        if command is None:
            return "error: cmd must be a string"
        if self._shell is None:
            raise OverlandError("this world has no sandbox: open it with `async with task.open_world(sandbox)`")
        result = await self._shell.run(command, output_bytes=OUTPUT_BYTES)
        return shell_observation(result.text, result.rc, result.note)

    def call_now(self, args: Mapping[str, object]) -> str:
        command = one_string(args, "cmd")
        if command not in self.trusted:
            raise OverlandError(f"command {command!r} is not one of the oracle's: run it in a sandbox")
        assert self.workdir is not None
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.workdir.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            timeout=30,
            check=False,
        )
        return shell_observation(done.stdout.decode("utf-8", "replace"), done.returncode)

    def changes(self) -> Changes:
        """The tree that is left. Links, pipes and folders count as changes like any other path."""
        assert self.workdir is not None
        found = _plain(self.workdir.read(MAX_FILES, MAX_BYTES))
        folders = dict.fromkeys((f"{folder}/" for folder in self.folders), b"")
        before = {path: text.encode() for path, text in self.files.items()} | folders
        after = {path: text.encode() for path, text in self.expected.items()} | folders
        return Changes(
            missing=tuple(sorted(after.keys() - found.keys())),
            unexpected=tuple(sorted(found.keys() - after.keys())),
            altered=tuple(sorted(path for path in after.keys() & found.keys() if after[path] != found[path])),
            touched=found != before,
        )


def _plain(tree: Tree) -> dict[str, bytes | None]:
    """Path to content; a folder ends in a slash, None for what is not a plain readable file."""
    odd = dict.fromkeys([*tree.links, *tree.skipped])
    return {**tree.files, **odd, **dict.fromkeys((f"{folder}/" for folder in tree.folders), b"")}
