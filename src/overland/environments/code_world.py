"""A repository to work in: files to read and change, commands and tests in the sandbox, hidden cases afterwards.

The hidden cases run outside of the agent's reach: the declared artefacts are copied into a fresh folder, a fresh
sandbox calls the functions there, and the results are compared here. What would be right is never inside.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from overland.environments.commands import TRUSTED_ENVIRONMENT, Commands
from overland.environments.repository import Repository, right
from overland.environments.tool_world import Folder, Refused, ToolWorld, inside
from overland.environments.world import Changes, clip
from overland.errors import OverlandError

if TYPE_CHECKING:
    from overland.agent.sandbox.base import Sandbox

PYTHON = "/usr/bin/python3"
TEST_SECONDS = 20.0
LARGEST_ARTEFACT = 64 << 10
_TOOK = re.compile(r" in \d+\.\d+s(?=\n|$)")
DRIVER = """
import importlib, json, os, sys
calls = json.load(sys.stdin)
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())
found = []
for call in calls:
    try:
        function = getattr(importlib.import_module(call["module"]), call["function"])
        found.append(["value", json.loads(json.dumps(function(*call["arguments"])))])
    except Exception as error:
        found.append(["error", type(error).__name__])
json.dump(found, out)
out.close()
"""


class CodeWorld(ToolWorld):
    """`trusted` are the commands of the oracle's `run` calls."""

    tools = ("ls", "view", "search", "edit", "create", "run", "test")

    def __init__(self, repository: Repository, trusted: frozenset[str] = frozenset()) -> None:
        self.repository = repository
        self.folder = Folder(repository.files)
        self.commands = Commands(trusted | {_test_command("all"), *map(_test_command, repository.names)}, self.limit)
        self._sandbox: Sandbox | None = None
        self.results: list[Any] | None = None
        """What the cases gave, hidden ones first, once `examine` has run."""

    def open(self) -> None:
        self.folder.open()

    def close(self) -> None:
        self.folder.close()

    async def start(self, sandbox: Sandbox | None = None) -> None:
        await self.commands.start(sandbox, self.folder.path)
        self._sandbox = sandbox

    async def stop(self) -> None:
        await self.commands.stop()

    def ls(self) -> str:
        """List the files of the repository."""
        return "\n".join(path for path in sorted(self.folder.read_all()) if "__pycache__" not in path)

    def view(self, path: str) -> str:
        """Show a file.

        Args:
            path: the file, as ls names it
        """
        return self.folder.read(path).decode("utf-8", "replace") or "(empty)"

    def search(self, text: str) -> str:
        """Find lines that contain a text, in all files.

        Args:
            text: what to look for
        """
        if not text:
            raise Refused("give a text to look for")
        found = [
            f"{path}:{number}: {line.strip()}"
            for path, content in sorted(self.folder.read_all().items())
            for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1)
            if text in line
        ]
        return "\n".join(found) or "nothing found"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file by another; the old text must stand there exactly once.

        Args:
            path: the file
            old: the text to replace, with its indentation
            new: the text to put there
        """
        content = self.folder.read(path).decode("utf-8", "replace")
        if not old or content.count(old) != 1:
            raise Refused(f"the old text stands {content.count(old) if old else 0} times in {path}, not once")
        self.folder.write(path, content.replace(old, new))
        return "edited"

    def create(self, path: str, text: str) -> str:
        """Write a new file.

        Args:
            path: the file, which must not exist
            text: its content
        """
        if inside(path) in self.folder.read_all():
            raise Refused(f"{path} exists: use edit")
        self.folder.write(path, text)
        return "created"

    async def run(self, command: str) -> str:
        """Run a shell command in the repository, in a sandbox without a network.

        Args:
            command: for /bin/sh
        """
        return await self._command(command)

    async def test(self, module: str) -> str:
        """Run the public tests.

        Args:
            module: the module whose tests to run, or all
        """
        if module != "all" and module not in self.repository.names:
            raise Refused(f"there is no module {module}: use all or one of {', '.join(self.repository.names)}")
        said = await self._command(_test_command(module))
        # Neither the time it took nor where the folder lies says anything about the code.
        return _TOOK.sub("", said.replace(str(self.folder.path), "/work"))

    async def _command(self, command: str) -> str:
        if self._sandbox is None:
            return self.commands.run_now(command, self.folder.path)
        return await self.commands.run(command, TEST_SECONDS)

    def put(self, files: Mapping[str, str]) -> bool:
        for path, text in files.items():
            self.folder.write(path, text)
        return True

    def changes(self) -> Changes:
        """Files outside of the artefacts must be as they were; new ones do not matter: nobody looks at them."""
        found, free = self.folder.read_all(), set(self.repository.artefacts)
        fixed = {path: text.encode() for path, text in self.repository.files.items() if path not in free}
        altered = tuple(sorted(path for path, text in fixed.items() if path in found and found[path] != text))
        return Changes(
            missing=tuple(sorted(fixed.keys() - found.keys())), altered=altered, touched=found != self._before()
        )

    def _before(self) -> dict[str, bytes]:
        return {path: text.encode() for path, text in self.repository.files.items()}

    def solution(self) -> dict[str, str | bytes]:
        """The repository as it is verified: the artefacts as they are now, the rest as it was."""
        found = self.folder.read_all()
        files: dict[str, str | bytes] = {**self.repository.files}
        for path in self.repository.artefacts:
            content = found.get(path, b"raise ImportError('the file is gone')\n")
            files[path] = content if len(content) <= LARGEST_ARTEFACT else b"raise ImportError('too large')\n"
        return files

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [self.repository.call(case) for case in (*self.repository.hidden, *self.repository.public)]

    async def examine(self) -> None:
        from overland.agent.sandbox.base import SandboxLimits

        if self._sandbox is None:
            raise OverlandError("hidden tests need a sandbox: open the world with one")
        fresh = Folder(self.solution())
        fresh.open()
        try:
            limits = SandboxLimits(output_bytes=1 << 20)
            argv = [PYTHON, "-I", "-B", "-c", DRIVER]
            done = await self._sandbox.run_once(argv, json.dumps(self.calls).encode(), TEST_SECONDS, fresh.path, limits)
            if done.rc == 127:
                raise OverlandError(f"the sandbox has no {PYTHON}: {clip(done.text)}")
            self.results = _read(done.stdout, len(self.calls))
        finally:
            fresh.close()

    def examine_now(self) -> None:
        """`examine` after the oracle's own calls: its code is ours."""
        fresh = Folder(self.solution())
        fresh.open()
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-c", DRIVER],
                input=json.dumps(self.calls).encode(), cwd=fresh.path, capture_output=True, timeout=60, check=False,
                env=TRUSTED_ENVIRONMENT,
            )  # fmt: skip
            self.results = _read(done.stdout, len(self.calls))
        finally:
            fresh.close()

    def passed(self) -> tuple[float, float]:
        """The share of hidden and of public cases that came out right."""
        if self.results is None:
            if self._sandbox is not None:
                raise OverlandError("the world was not examined: score a policy's attempt with `judge`")
            self.examine_now()
        assert self.results is not None
        hidden = len(self.repository.hidden)
        cases = (*self.repository.hidden, *self.repository.public)
        good = [result == right(case) for result, case in zip(self.results, cases, strict=True)]
        return sum(good[:hidden]) / hidden, sum(good[hidden:]) / (len(cases) - hidden)


def _read(output: bytes, count: int) -> list[Any]:
    """The driver's results; anything else that was printed is no result, and none of the cases passed."""
    try:
        found = json.loads(output)
    except ValueError:  # UnicodeDecodeError is one
        found = None
    return found if isinstance(found, list) and len(found) == count else [None] * count


def _test_command(module: str) -> str:
    which = "discover -s tests -t ." if module == "all" else f"tests.test_{module}"
    return f"{PYTHON} -B -m unittest {which} 2>&1 | tail -n 25"
