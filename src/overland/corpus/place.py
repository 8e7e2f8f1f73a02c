"""The corpus folder as a whole: what may be written over, and how it comes to be complete or not at all."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from overland import __version__, runs
from overland.corpus.parts import LAYOUT
from overland.corpus.section import CorpusSection
from overland.corpus.sources import Source
from overland.errors import OverlandError, UsageError


def recipe_hash(section: CorpusSection, extra: Sequence[str], digests: Sequence[str] = ()) -> str:
    """What makes two builds the same: the recipe, the conversations that shaped the tokenizer, and the digests of other
    files that decide over documents."""
    digest = hashlib.sha256(section.model_dump_json(exclude={"scale"}).encode())
    if section.licences.endswith(".toml"):  # a policy is part of the recipe
        digest.update(Path(section.licences).read_bytes())
    for part in digests:
        digest.update(part.encode())
    for text in extra:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def check_target(out: Path, recipe: str) -> None:
    """Only a corpus of this same recipe may be written over."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    lineage = out / "lineage.json"
    if not out.is_dir() or not lineage.is_file():
        raise UsageError(f"--out {out}: exists and is not a corpus; choose another folder")
    if runs.read_json(lineage).get("recipe_sha256") != recipe:
        raise UsageError(f"--out {out}: holds a corpus of another recipe; choose another folder or delete it")


@contextmanager
def work_folder(out: Path, recipe: str, sources: Sequence[Source], *, shared: bool = False) -> Iterator[Path]:
    """The hidden folder `.NAME.work` beside `out` with what a build has finished so far.

    It belongs to one recipe over one listing of sources (another's is emptied) and to one build at a time. It goes
    when the corpus is there, or when the recipe turns out to be wrong; after any other end it stays for the next try.
    `shared`: one of many tasks of a build works in it, and it stays. Raises UsageError where another build is at work
    in it, OverlandError where it cannot be written.
    """
    work = out.parent / f".{out.name}.work"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        with open(work / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"--out {out}: another build is writing it; wait for it or choose another") from error
            _prepare(work, _work_key(recipe, sources))
            if shared:
                fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                with runs.explain_disk_errors(out):
                    yield work
            except UsageError:
                if not shared:
                    shutil.rmtree(work, ignore_errors=True)
                raise
            if not shared:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise OverlandError(
            f"{out}: cannot be written ({error.strerror or error}); what was finished is kept in {work}"
        ) from error


def _work_key(recipe: str, sources: Sequence[Source]) -> str:
    key = hashlib.sha256(f"{__version__}\0{LAYOUT}\0{recipe}".encode())
    for source in sources:
        key.update(f"\0{source.name}\0{source.root}\0{source.evidence}".encode("utf-8", "surrogateescape"))
        for entry in source.files:
            key.update(f"\0{entry.path}\0{entry.size}\0{entry.groups}".encode("utf-8", "surrogateescape"))
    return key.hexdigest()


def _prepare(work: Path, key: str) -> None:
    """Empty what another recipe left."""
    mark = work / "key"
    if mark.is_file() and mark.read_text() == key:
        return
    for old in work.iterdir():
        if old.name != "lock":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for name in ("read", "decided", "rows", "tokens"):
        (work / name).mkdir()
    runs.atomic_write(mark, key)


@contextmanager
def finished_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its name if all goes well, and vanishes if not."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for stale in out.parent.glob(f".{glob.escape(out.name)}.*"):
            if stale.suffix in (".partial", ".old") and not _alive(stale.name.split(".")[-2]):
                shutil.rmtree(stale, ignore_errors=True)  # left by a build that was killed
        folder = out.parent / f".{out.name}.{os.getpid()}.partial"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            (folder / "shards").mkdir(parents=True)
            with runs.explain_disk_errors(out):
                yield folder
            runs.replace_folder(folder, out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise OverlandError(f"{out}: cannot be written ({error.strerror or error}); nothing was left behind") from error


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:
        return True
    return True
