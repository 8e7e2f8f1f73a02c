"""A folder of small text files under the machine's own /bin/sh; what matters at the end is the tree that is left."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from overland.environments.world import Changes, World, clip, one_string, tool_spec
from overland.errors import OverlandError

SHELL_SPEC = tool_spec("sh", "run a shell command", "cmd")

_READ_LIMIT = 1 << 16
"""Bytes of a final file that are compared; every file of a task is far shorter."""


def shell_observation(output: str, code: int) -> str:
    """What a command printed, or how it ended when it printed nothing."""
    return clip(output) or ("ok" if code == 0 else f"error: exit {code}")


class FilesWorld(World):
    """`files` maps each path to its content before, `expected` after. Folders exist exactly where files are, before.

    The oracle's own commands (`trusted`) run in a plain /bin/sh in the folder. A policy's commands never do: they go
    through a sandboxed shell which is held open for the episode.
    """

    spec = SHELL_SPEC

    def __init__(self, files: Mapping[str, str], expected: Mapping[str, str], trusted: frozenset[str]) -> None:
        self.files, self.expected, self.trusted = dict(files), dict(expected), trusted
        self.folders = {path.rsplit("/", 1)[0] for path in self.files if "/" in path}
        self.root: Path | None = None

    def open(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="overland-"))
        base = str(self.root)
        for folder in self.folders:
            os.mkdir(f"{base}/{folder}")
        for path, content in self.files.items():
            with open(f"{base}/{path}", "w", encoding="utf-8") as file:
                file.write(content)

    def close(self) -> None:
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)
            self.root = None

    def call_now(self, args: Mapping[str, object]) -> str:
        command = one_string(args, "cmd")
        if command not in self.trusted:
            raise OverlandError(f"command {command!r} is not one of the oracle's: run it in a sandbox")
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            timeout=30,
            check=False,
        )
        return shell_observation(done.stdout.decode("utf-8", "replace"), done.returncode)

    def changes(self) -> Changes:
        found = self.tree()
        missing = sorted(self.expected.keys() - found.keys())
        folders = {f"{folder}/" for folder in self.folders}
        unexpected = sorted((found.keys() - self.expected.keys() - folders) | {f for f in folders if f not in found})
        altered = sorted(path for path, text in self.expected.items() if path in found and found[path] != text)
        touched = found != {**self.files, **dict.fromkeys(folders, "")}
        return Changes(tuple(missing), tuple(unexpected), tuple(altered), touched)

    def tree(self) -> dict[str, str | None]:
        """Path to content as it is now; a folder ends in a slash, what is not a plain file has content None.

        Links are not followed and pipes are not opened: the tree was last written by a policy.
        """
        assert self.root is not None
        found: dict[str, str | None] = {}
        for folder, names, files in os.walk(self.root, followlinks=False):
            for name in names + files:
                full = os.path.join(folder, name)
                path = os.fsencode(os.path.relpath(full, self.root)).decode("utf-8", "replace")
                mode = os.lstat(full).st_mode
                if stat.S_ISDIR(mode):
                    found[f"{path}/"] = ""
                elif stat.S_ISREG(mode):
                    with open(full, "rb") as file:
                        found[path] = file.read(_READ_LIMIT).decode("utf-8", "replace")
                else:
                    found[path] = None
        return found
