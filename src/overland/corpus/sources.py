"""Where text comes from: the installed standard library, the user's folders, and remote ones through fsspec.

Lists files; reads none of their text. A walk never follows symbolic links to folders (loops) and takes regular files
only (a pipe would block for ever). What a listed file holds is decided by its suffix: text, code and pages are one
document each; JSON lines, Parquet and WARC files hold many.
"""

from __future__ import annotations

import os
import platform
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from overland.corpus.evidence import FolderEvidence, is_evidence_file, read_folder_evidence
from overland.corpus.remote import RemoteFile, file_system, os_errors
from overland.corpus.section import SourceSection
from overland.errors import OverlandError, UsageError

PROSE = (".txt", ".md", ".rst", ".tex")
PAGES = (".html", ".htm", ".xhtml")
CODE = {
    ".py": "python", ".c": "c", ".h": "c", ".cc": "c++", ".cpp": "c++", ".hpp": "c++", ".rs": "rust", ".go": "go",
    ".java": "java", ".kt": "kotlin", ".js": "javascript", ".ts": "typescript", ".rb": "ruby", ".php": "php",
    ".sh": "shell", ".sql": "sql", ".cs": "c#", ".swift": "swift", ".scala": "scala", ".jl": "julia", ".lua": "lua",
    ".hs": "haskell", ".ml": "ocaml", ".pl": "perl", ".r": "r", ".css": "css",
}  # fmt: skip
RECORDS = (
    ".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".parquet", ".warc", ".warc.gz",
    ".warc.zst",
)  # fmt: skip
SUFFIXES = (*PROSE, *PAGES, *CODE, *RECORDS)
_TEST_FOLDERS = frozenset(("test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"))
_HIDDEN = frozenset(("__pycache__", ".git", ".hg", ".svn"))


@dataclass(frozen=True)
class FileEntry:
    """One file of a source: its path relative to the root, with `/`, and its size in bytes.

    `groups`: of a Parquet file, the row groups [start, end) that this entry stands for; None is all of them.
    """

    path: str
    size: int
    groups: tuple[int, int] | None = None


@dataclass
class Source:
    """A root (a folder, one file, or an fsspec URL) and what it offers. Picklable: workers open files through it."""

    name: str
    root: Path | str
    declared: str | None = None  # expression that the recipe states for files without their own
    declared_by: str = ""
    evidence: FolderEvidence = field(default_factory=FolderEvidence)
    fields: SourceSection | None = None
    files: list[FileEntry] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def is_stdlib(self) -> bool:
        return self.name.startswith("python-stdlib-")

    @property
    def remote(self) -> bool:
        return isinstance(self.root, str)

    @cached_property
    def _filesystem(self) -> Any:
        return file_system(str(self.root))

    def open(self, path: str) -> BinaryIO:
        """One of its files for reading. Raises OSError."""
        if isinstance(self.root, Path):
            return open(self.root / path if path else self.root, "rb")
        system, base = self._filesystem
        return RemoteFile(system, f"{base.rstrip('/')}/{path}" if path else base)  # type: ignore[return-value]

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs: the listing stays behind, a connection cannot travel."""
        state = dict(self.__dict__)
        state.pop("_filesystem", None)
        return {**state, "files": [], "skipped": Counter()}

    def describe_skipped(self) -> str:
        """`14 files skipped: 9 .png, 5 .bin`."""
        total = sum(self.skipped.values())
        parts = ", ".join(f"{count} {what}" for what, count in self.skipped.most_common(6))
        return f"{total} file{'s' if total != 1 else ''} skipped: {parts}" if total else "it holds no files"


def suffix_of(path: str) -> str:
    """The suffix that decides how a file is read: `.jsonl.zst`, `.py`, or "" ."""
    name = path.rsplit("/", 1)[-1].lower()
    return next((suffix for suffix in RECORDS if name.endswith(suffix)), os.path.splitext(name)[1])


def stdlib_source() -> Source:
    """The standard library of the running interpreter, without tests and without installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    source = Source(f"python-stdlib-{platform.python_version()}", root, "PSF-2.0", "the standard library")
    _walk(source, root, frozenset((".py",)), _TEST_FOLDERS, follow_files=True)
    if not source.files:
        raise OverlandError(
            f"{root}: this interpreter has no standard library in source form; give --text and set corpus.stdlib=false"
        )
    return source


def text_source(folder: str, name: str, declared: str | None) -> Source:
    """A folder of the user's. Raises UsageError when it is missing, unreadable or holds nothing that can be read."""
    return _open(folder, name, "corpus.text", declared, "corpus.text_licence" if declared else "", None)


def text_sources(folders: Iterable[str], declared: str | None) -> Iterator[Source]:
    """One source a folder, with distinct names made from the folders' own names."""
    names: Counter[str] = Counter()
    for folder in folders:
        base = folder.rstrip("/").rsplit("/", 1)[-1] if "://" in folder else Path(folder).expanduser().resolve().name
        base = base or "root"
        names[base] += 1
        yield text_source(folder, f"text:{base}" + (f"-{names[base]}" if names[base] > 1 else ""), declared)


def declared_source(fields: SourceSection) -> Source:
    """A source that the recipe names, with its licence, its fields and whom to name."""
    by = f"the recipe's word for source {fields.name}" if fields.licence else ""
    return _open(fields.path, fields.name, "corpus.source.path", fields.licence, by, fields)


def named_source(place: str, field_name: str) -> Source:
    """A file, a folder or a URL that is no text of the corpus; errors name `field_name`."""
    return _open(place, place, field_name, None, "", SourceSection(name=place, path=place))


def _open(
    place: str, name: str, field_name: str, declared: str | None, by: str, fields: SourceSection | None
) -> Source:
    remote = "://" in place
    root: Path | str = place if remote else Path(place).expanduser()
    source = Source(name, root, declared, by, fields=fields)
    try:
        if isinstance(root, Path):
            source.root = root.resolve()
            _list_local(source, root, field_name, place, one_file=fields is not None)
        else:
            with os_errors():
                _list_remote(source)
    except FileNotFoundError as error:
        raise UsageError(f"{field_name}: {place} does not exist; give a folder with {_examples()} files") from error
    except NotADirectoryError as error:
        raise UsageError(f"{field_name}: {place} is a file; give the folder that holds it") from error
    except (OSError, ImportError, ValueError) as error:
        what = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise UsageError(f"{field_name}: {place} cannot be read ({what}); change its mode or choose another") from error
    source.files = [part for entry in source.files for part in _row_groups(source, entry)]
    if not source.files:
        raise UsageError(
            f"{field_name}: {place} has nothing to read ({source.describe_skipped()}); "
            f"only {_examples()} files are read"
        )
    return source


def _examples() -> str:
    return " ".join((*PROSE, ".html", ".py", ".c", ".jsonl[.zst|.gz]", ".parquet", ".warc[.gz]"))


def _list_local(source: Source, root: Path, field_name: str, place: str, *, one_file: bool) -> None:
    if one_file and root.is_file():
        status = root.stat()
        source.root = root.resolve().parent
        source.files = [FileEntry(root.name, status.st_size)]
    else:
        for _ in os.scandir(root):
            break
        _walk(source, root, frozenset(SUFFIXES), _HIDDEN, follow_files=False)
    _take_evidence(source)


def _list_remote(source: Source) -> None:
    system, base = source._filesystem
    if suffix_of(base) in SUFFIXES and system.isfile(base):  # to a web server every page is a file, folders too
        found = {base: system.info(base)}
        source.root = str(source.root).rsplit("/", 1)[0]
        del source.__dict__["_filesystem"]
        base = base.rsplit("/", 1)[0]
    else:
        found = system.find(base, detail=True)
        if not found:
            raise FileNotFoundError(base)
    for path in sorted(found):
        relative = path[len(base) :].lstrip("/")
        size = _remote_size(system, path, found[path]) if suffix_of(relative) in SUFFIXES else 1
        if is_evidence_file(relative):
            source.files.append(FileEntry(relative, size))
        elif suffix_of(relative) not in SUFFIXES:
            source.skipped[suffix_of(relative) or "without a suffix"] += 1
        elif size:
            source.files.append(FileEntry(relative, size))
        else:
            source.skipped["empty file"] += 1
    _take_evidence(source)


def _row_groups(source: Source, entry: FileEntry) -> list[FileEntry]:
    """A Parquet file as one entry a row group, so that workers share it; another file, or a damaged one, as it is."""
    if suffix_of(entry.path) != ".parquet":
        return [entry]
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with source.open(entry.path) as file:
            footer = pq.ParquetFile(file).metadata
        sizes = [footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError):
        return [entry]
    if len(sizes) < 2:
        return [entry]
    return [FileEntry(entry.path, size, (group, group + 1)) for group, size in enumerate(sizes)]


def _remote_size(system: Any, path: str, listed: dict[str, Any]) -> int:
    """Bytes of a file; 1 where its store does not say (a web server's listing, a page made as it is asked for)."""
    size = listed.get("size")
    if size is None:
        size = system.info(path).get("size")
    return 1 if size is None else int(size)


def _take_evidence(source: Source) -> None:
    """Licence files, package metadata and the like speak for the others and are no text themselves."""
    named = [entry.path for entry in source.files if is_evidence_file(entry.path)]
    source.evidence = read_folder_evidence(source.open, named)
    source.files = [entry for entry in source.files if not is_evidence_file(entry.path)]


def _walk(source: Source, root: Path, suffixes: frozenset[str], without: frozenset[str], *, follow_files: bool) -> None:
    def refused(error: OSError) -> None:
        source.skipped["unreadable folder"] += 1

    for folder, folders, names in os.walk(root, onerror=refused):
        folders[:] = sorted(name for name in folders if name not in without)
        links = sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        if links and not follow_files:
            source.skipped["symbolic link"] += links
        for name in sorted(names):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            evidence = not follow_files and is_evidence_file(relative)
            suffix = suffix_of(name)
            if suffix not in suffixes and not evidence:
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
                source.files.append(FileEntry(relative, status.st_size))
