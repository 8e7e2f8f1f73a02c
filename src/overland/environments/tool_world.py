"""A world of several tools: typed methods, whose signatures are the schemas and whose docstrings the descriptions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from overland.chat import MalformedCall, ToolSpec
from overland.environments.world import World, clip

if TYPE_CHECKING:
    from overland.agent.sandbox.workdir import Tree, Workdir


class Refused(Exception):
    """What a tool will not do. The policy reads "error: ..."."""


class ToolWorld(World):
    """`tools` names the methods. Each gives the observation and raises Refused for what it cannot do."""

    tools: ClassVar[tuple[str, ...]]
    limit: ClassVar[int] = 4_000
    """Characters of an observation."""

    @cached_property
    def specs(self) -> Sequence[ToolSpec]:
        from overland.agent.tool import spec_of

        return tuple(spec_of(getattr(self, name)) for name in self.tools)

    def use_now(self, tool: str, args: Mapping[str, object]) -> str:
        return at_once(self.use(tool, args))

    async def use(self, tool: str, args: Mapping[str, object]) -> str:
        spec = next((spec for spec in self.specs if spec.name == tool), None)
        if spec is None:
            return f"error: there is no tool {tool!r}"
        try:
            spec.check(dict(args))
            function: Callable[..., Any] = getattr(self, tool)
            result = function(**args)
            return clip(await result if isinstance(result, Coroutine) else result, self.limit)
        except (Refused, MalformedCall) as error:
            return clip(f"error: {error}", self.limit)


def at_once(work: Coroutine[Any, Any, str]) -> str:
    """The result of a coroutine that never has to wait, as the oracle's calls never do: they run where they stand."""
    try:
        work.send(None)
    except StopIteration as done:
        return str(done.value)
    work.close()
    raise RuntimeError("the oracle's call waits for something: use it through `use`")


class Folder:
    """The files of a world that has some: made when it opens, read without following a link, gone when it closes."""

    def __init__(self, files: Mapping[str, str | bytes], max_files: int = 2_000, max_bytes: int = 8 << 20) -> None:
        self.files = dict(files)
        self.max_files, self.max_bytes = max_files, max_bytes
        self._workdir: Workdir | None = None

    @property
    def path(self) -> Path:
        assert self._workdir is not None, "the world is not open"
        return self._workdir.path

    def open(self) -> None:
        from overland.agent.sandbox.workdir import Workdir

        self._workdir = Workdir(self.files)

    def close(self) -> None:
        if self._workdir is not None:
            self._workdir.close()
            self._workdir = None

    def read_all(self) -> dict[str, bytes]:
        """Path to content of the plain files that are there now, within bounds."""
        return self.tree().files

    def tree(self) -> Tree:
        """All that is there now, within bounds; empty where somebody removed the folder itself."""
        from overland.agent.sandbox.workdir import Tree

        assert self._workdir is not None, "the world is not open"
        try:
            return self._workdir.read(self.max_files, self.max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return Tree({})

    def read(self, path: str) -> bytes:
        """One file. Raises Refused where there is no such plain file."""
        content = self.read_all().get(inside(path))
        if content is None:
            raise Refused(f"there is no file {path}")
        return content

    def write(self, path: str, content: str | bytes) -> None:
        """Makes or replaces one file, never through a link. Raises Refused where the path does not allow it."""
        from overland.agent.sandbox.workdir import write_files

        try:
            write_files(self.path, {inside(path): content})
        except (IsADirectoryError, NotADirectoryError, FileNotFoundError, PermissionError) as error:
            raise Refused(f"{path} cannot be written: {error.strerror}") from None
        except OSError as error:  # a link, a name that is too long: the policy's doing; a full disk is not
            import errno

            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO):
                raise Refused(f"{path} cannot be written: {error.strerror}") from None
            raise


def inside(path: str) -> str:
    """A path within the folder, in its plain form. Raises Refused for one that leads out of it."""
    plain = PurePosixPath(path.strip().removeprefix("./"))
    if not plain.parts or plain.is_absolute() or ".." in plain.parts or "\x00" in path:
        raise Refused(f"{path!r} is not a path in the work folder")
    return str(plain)
