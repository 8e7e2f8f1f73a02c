"""Where text comes from: the installed standard library and the user's folders. Lists files; reads none.

A walk never follows symbolic links to folders (loops) and takes regular files only (a pipe would block for ever).
"""

from __future__ import annotations

import os
import platform
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from overland.errors import OverlandError, UsageError
from overland.licences import recognise_licence

SUFFIXES = (".txt", ".md", ".rst", ".py", ".html")
_TEST_FOLDERS = frozenset(("test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"))
_LICENCE_FILES = ("licence", "license", "copying", "unlicense", "unlicence")


@dataclass(frozen=True)
class FileEntry:
    """One file of a source: its path relative to the root, with `/`, and its size in bytes."""

    path: str
    size: int


@dataclass
class Source:
    """A root folder and what it offers. `folder_licences`: each licence file at the root and its SPDX key, or None."""

    name: str
    root: Path
    declared: str | None = None  # expression that the recipe states for files without their own
    declared_by: str = ""
    folder_licences: dict[str, str | None] = field(default_factory=dict)
    files: list[FileEntry] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def is_stdlib(self) -> bool:
        return self.name.startswith("python-stdlib-")

    def describe_skipped(self) -> str:
        """`14 files skipped: 9 .png, 5 .bin`."""
        total = sum(self.skipped.values())
        parts = ", ".join(f"{count} {what}" for what, count in self.skipped.most_common(6))
        return f"{total} file{'s' if total != 1 else ''} skipped: {parts}" if total else "it holds no files"


def stdlib_source() -> Source:
    """The standard library of the running interpreter, without tests and without installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    source = Source(f"python-stdlib-{platform.python_version()}", root, "PSF-2.0", "the standard library")
    _walk(source, (".py",), _TEST_FOLDERS, follow_files=True)
    if not source.files:
        raise OverlandError(
            f"{root}: this interpreter has no standard library in source form; give --text and set corpus.stdlib=false"
        )
    return source


def text_source(folder: str, name: str, declared: str | None) -> Source:
    """A folder of the user's. Raises UsageError when it is missing, unreadable or holds nothing that can be read."""
    root = Path(folder).expanduser()
    try:
        entries = sorted(os.scandir(root), key=lambda item: item.name)
    except FileNotFoundError as error:
        raise UsageError(
            f"corpus.text: {folder} does not exist; give a folder with {' '.join(SUFFIXES)} files"
        ) from error
    except NotADirectoryError as error:
        raise UsageError(f"corpus.text: {folder} is a file; give the folder that holds it") from error
    except OSError as error:
        raise UsageError(
            f"corpus.text: {folder} cannot be read ({error.strerror}); change its mode or choose another"
        ) from error
    source = Source(name, root.resolve(), declared, "corpus.text_licence" if declared else "")
    _walk(source, SUFFIXES, frozenset(("__pycache__", ".git", ".hg", ".svn")), follow_files=False)
    for entry in entries:
        if entry.name.lower().split(".")[0].split("-")[0] in _LICENCE_FILES and entry.is_file():
            source.folder_licences[entry.name] = _read_licence(Path(entry.path))
    source.files = [file for file in source.files if file.path not in source.folder_licences]
    if not source.files:
        raise UsageError(
            f"corpus.text: {folder} has nothing to read ({source.describe_skipped()}); "
            f"only {' '.join(SUFFIXES)} files are read"
        )
    return source


def text_sources(folders: Iterable[str], declared: str | None) -> Iterator[Source]:
    """One source a folder, with distinct names made from the folders' own names."""
    names: Counter[str] = Counter()
    for folder in folders:
        base = Path(folder).expanduser().resolve().name or "root"
        names[base] += 1
        yield text_source(folder, f"text:{base}" + (f"-{names[base]}" if names[base] > 1 else ""), declared)


def _read_licence(path: Path) -> str | None:
    try:
        return recognise_licence(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _walk(source: Source, suffixes: tuple[str, ...], without: frozenset[str], *, follow_files: bool) -> None:
    def refused(error: OSError) -> None:
        source.skipped["unreadable folder"] += 1

    for folder, folders, names in os.walk(source.root, onerror=refused):
        folders[:] = sorted(name for name in folders if name not in without)
        for name in sorted(names):
            path = os.path.join(folder, name)
            suffix = os.path.splitext(name)[1].lower()
            if suffix not in suffixes:
                source.skipped[suffix or "without a suffix"] += 1
                continue
            try:
                status = os.stat(path, follow_symlinks=follow_files)
            except OSError:
                source.skipped["unreadable file"] += 1
                continue
            if stat.S_ISLNK(status.st_mode):
                source.skipped["symbolic link"] += 1
            elif not stat.S_ISREG(status.st_mode):
                source.skipped["special file"] += 1
            elif status.st_size == 0:
                source.skipped["empty file"] += 1
            else:
                relative = os.path.relpath(path, source.root).replace(os.sep, "/")
                source.files.append(FileEntry(relative, status.st_size))
