"""One task given in words to a model with a shell in a sandbox, on a copy of a folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overland.agent import Limits, Tool, Trajectory, run_loop
from overland.agent.sandbox import Shell, Workdir, choose_sandbox, read_tree
from overland.chat import Message, normalise_effort
from overland.engine import Sampling
from overland.environments.commands import shell_observation
from overland.environments.files_world import SHELL_SPEC
from overland.errors import UsageError

if TYPE_CHECKING:
    from overland.agent import Policy

MOST_BYTES = 64 << 20
MOST_FILES = 10_000


@dataclass(frozen=True)
class ShellTask:
    """What is asked, and what it may use. `workdir` is copied: the folder itself is never changed."""

    task: str
    effort: str = "high"
    workdir: Path | None = None
    save: Path | None = None
    """Where the changed copy goes; must not exist."""
    turns: int = 16
    tokens: int = 1024
    temperature: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raises UsageError for what is wrong before any model is loaded."""
        if not self.task.strip():
            raise UsageError("the task is empty: say what is to be done")
        normalise_effort(self.effort)
        if self.workdir is not None and not self.workdir.is_dir():
            raise UsageError(f"--workdir {self.workdir}: there is no such folder")
        if self.save is not None and self.save.exists():
            raise UsageError(f"--save {self.save}: exists already; choose another name")

    def run(
        self, policy: Policy, *, no_sandbox: bool = False, on_start: Callable[[str], None] = lambda name: None
    ) -> Trajectory:
        """The whole trajectory. `on_start` is told the sandbox's name."""
        self.check()
        sandbox = choose_sandbox(no_sandbox)
        with Workdir(_copy_of(self.workdir)) as work:
            on_start(sandbox.name)
            trajectory = asyncio.run(self._run(policy, sandbox, work))
            if self.save is not None:
                _write_copy(work, self.save)
        return trajectory

    async def _run(self, policy: Policy, sandbox: Any, work: Workdir) -> Trajectory:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(policy.session(0))
            shell: Shell = await stack.enter_async_context(await sandbox.open_shell(work.path))

            async def sh(arguments: dict[str, Any]) -> str:
                result = await shell.run(str(arguments["cmd"]))
                return shell_observation(result.text, result.rc, result.note)

            return await run_loop(
                policy,
                [Message("user", self.task)],
                [Tool(SHELL_SPEC, sh)],
                effort=self.effort,
                sampling=Sampling(temperature=self.temperature, seed=self.seed, max_tokens=self.tokens),
                limits=Limits(max_turns=self.turns, output_tokens=self.tokens),
            )


def _copy_of(folder: Path | None) -> dict[str, bytes | str]:
    """The folder's regular files. Raises UsageError where it is too large to be copied for one task."""
    if folder is None:
        return {}
    tree = read_tree(folder.resolve(), MOST_FILES, MOST_BYTES)  # links inside are not followed
    too_much = [path for path, why in tree.skipped.items() if why in ("too large", "too many files")]
    if too_much:
        raise UsageError(
            f"--workdir {folder}: is larger than {MOST_BYTES >> 20} MiB or {MOST_FILES} files (at {too_much[0]}); "
            "give the part that the task is about"
        )
    return dict(tree.files)


def _write_copy(work: Workdir, target: Path) -> None:
    """What the commands left, as plain files: links are not followed and not kept."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        tree = work.read(MOST_FILES, MOST_BYTES)
        for name in tree.folders:
            (partial / name).mkdir(parents=True, exist_ok=True)
        for name, content in tree.files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
