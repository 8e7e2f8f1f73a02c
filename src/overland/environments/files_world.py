"""A folder of small text files under the machine's own /bin/sh; what counts at the end is the tree that is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from overland.environments.commands import Commands
from overland.environments.world import Changes, World, one_string, tool_spec

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox
    from overland.agent.sandbox.workdir import Tree, Workdir

SHELL_SPEC = tool_spec("sh", "run a shell command", "cmd")
MAX_FILES = 500
"""Entries of the final tree that are looked at: far more than any task has."""
MAX_BYTES = 1 << 20


class FilesWorld(World):
    """`files` maps each path to its content before, `expected` after. Folders exist exactly where files are, before.

    The oracle's own commands (`trusted`) run in a plain /bin/sh in the folder. A policy's commands never do: they go
    through a shell in a sandbox, held open for the episode.
    """

    spec = SHELL_SPEC

    def __init__(self, files: Mapping[str, str], expected: Mapping[str, str], trusted: frozenset[str]) -> None:
        self.files, self.expected = dict(files), dict(expected)
        self.commands = Commands(trusted)
        self.folders = {path.rsplit("/", 1)[0] for path in self.files if "/" in path}
        self.workdir: Workdir | None = None

    def open(self) -> None:
        from overland.agent.sandbox.workdir import Workdir

        self.workdir = Workdir(self.files)

    def close(self) -> None:
        if self.workdir is not None:
            self.workdir.close()
            self.workdir = None

    async def start(self, sandbox: Sandbox | None = None) -> None:
        assert self.workdir is not None
        await self.commands.start(sandbox, self.workdir.path)

    async def stop(self) -> None:
        await self.commands.stop()

    async def call(self, args: Mapping[str, object]) -> str:
        command = one_string(args, "cmd")
        return "error: cmd must be a string" if command is None else await self.commands.run(command)

    def call_now(self, args: Mapping[str, object]) -> str:
        assert self.workdir is not None
        return self.commands.run_now(one_string(args, "cmd"), self.workdir.path)

    def put(self, files: Mapping[str, str]) -> bool:
        from overland.agent.sandbox.workdir import write_files

        assert self.workdir is not None
        write_files(self.workdir.path, files)
        return True

    def changes(self) -> Changes:
        """The tree that is left. Links, pipes and folders count as changes like any other path."""
        assert self.workdir is not None
        try:
            found = _plain(self.workdir.read(MAX_FILES, MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):  # somebody removed the folder itself
            found = {}
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
