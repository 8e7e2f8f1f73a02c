"""What is refused: before anything is written, with the way out in the message; and builds that are cut short."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overland.corpus import CorpusSection, build, gather, pieces, place, publish, read_documents_table
from overland.corpus.reading import read_documents
from overland.corpus.sources import text_source
from overland.errors import OverlandError, UsageError

from .conftest import SMALL, hashes, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]
CC0 = "SPDX-License-Identifier: CC0-1.0\n\n"


def refused(root: Path | str, out: Path, **fields: object) -> str:
    with pytest.raises(UsageError) as error:
        build(CorpusSection(**{**SMALL, "text": (str(root),), **fields}), out, progress=quiet)
    assert not out.exists()
    assert not list(out.parent.glob(".*partial"))
    return str(error.value)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in refused(tmp_path / "nowhere", tmp_path / "out")


def test_empty_folder_is_named(folder: Folder, tmp_path: Path) -> None:
    assert "it holds no files" in refused(folder({}), tmp_path / "out")


def test_file_instead_of_a_folder_is_named(folder: Folder, tmp_path: Path) -> None:
    assert "is a file" in refused(folder({"a.txt": "x"}) / "a.txt", tmp_path / "out")


def test_no_source_at_all_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give --text DIR"):
        build(CorpusSection(stdlib=False), tmp_path / "out", progress=quiet)


def test_folder_of_binaries_is_counted_by_kind(folder: Folder, tmp_path: Path) -> None:
    root = folder({**{f"{n}.png": b"\x89PNG\0" for n in range(3)}, "x.bin": b"\0", "README": b"hello"})
    message = refused(root, tmp_path / "out")
    assert "5 files skipped: 3 .png" in message
    assert "1 .bin" in message
    assert "1 without a suffix" in message


def test_binaries_under_text_names_are_refused(folder: Folder, tmp_path: Path) -> None:
    message = refused(folder({"a.txt": b"\0\1\2", "b.txt": b"\xff\xfe\xfd"}), tmp_path / "out")
    assert "none of its 2 documents" in message
    assert "binary" in message


def test_folder_without_a_licence_says_how_to_state_one(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": prose(n) for n in range(3)})
    message = refused(root, tmp_path / "out")
    assert "3 licence: unknown licence" in message
    assert "corpus.text_licence" in message
    assert "corpus.text_authorised" in message
    build(CorpusSection(text=(str(root),), text_authorised="I wrote these", **SMALL), tmp_path / "out", progress=quiet)
    rows = read_documents_table(tmp_path / "out").to_pylist()
    assert {row["licence"] for row in rows} == {"LicenseRef-authorised"}
    assert all("I wrote these" in row["licence_evidence"] for row in rows)


def test_evidence_that_disagrees_is_dropped_with_both_sides(folder: Folder, tmp_path: Path) -> None:
    root = folder({"LICENSE": "GNU GENERAL PUBLIC LICENSE Version 2", "a.txt": CC0 + prose("a")})
    message = refused(root, tmp_path / "out")
    assert "its header says CC0-1.0, LICENSE says GPL-2.0-only" in message
    assert "conflicting" in refused(root, tmp_path / "out", text_licence="CC-BY-4.0")


def test_two_licence_files_that_disagree_are_no_evidence(folder: Folder, tmp_path: Path) -> None:
    root = folder(
        {"LICENSE": "Apache License Version 2.0", "LICENSE-docs": "Attribution 4.0 International", "a.txt": prose("a")}
    )
    assert "conflicting licences: LICENSE says Apache-2.0, LICENSE-docs says CC-BY-4.0" in refused(
        root, tmp_path / "out"
    )


def test_link_loops_pipes_and_huge_lines_do_no_harm(folder: Folder, tmp_path: Path) -> None:
    root = folder({"good.txt": CC0 + prose("g"), "line.txt": CC0 + "a" * 300_000, "big.txt": "word " * 300_000})
    (root / "loop").symlink_to(root, target_is_directory=True)
    (root / "link.txt").symlink_to(root / "good.txt")
    (root / "dangling.txt").symlink_to(root / "gone")
    os.mkfifo(root / "pipe.txt")
    report = build(CorpusSection(text=(str(root),), max_file_megabytes=1.0, **SMALL), tmp_path / "out", progress=quiet)
    assert report.documents == {"kept": 1, "trimmed": 0, "dropped": 2}
    assert report.skipped["text:texts"] == {"symbolic link": 3, "special file": 1}


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """File modes mean nothing to root: act as nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter (pytest's own are private)."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


def test_unreadable_file_is_dropped_with_the_reason(public: Path) -> None:
    (public / "secret.txt").write_text(CC0 + prose("s"))
    (public / "secret.txt").chmod(0)
    source = text_source(str(public), "text:x", None)
    with ordinary_user():
        (document,) = read_documents(source, source.files[0], 10**6)
    assert (document.decision, document.reason) == ("dropped", "unreadable: Permission denied")


def test_unreadable_folder_is_refused(public: Path) -> None:
    (public / "locked").mkdir()
    (public / "locked").chmod(0)
    with ordinary_user(), pytest.raises(UsageError, match=r"locked cannot be read \(Permission denied\)"):
        text_source(str(public / "locked"), "text:x", None)


def test_folder_that_is_not_a_corpus_is_never_written_over(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.doc").write_text("precious")
    section = CorpusSection(text=(str(root),), **SMALL)
    with pytest.raises(UsageError, match="not a corpus"):
        build(section, out, progress=quiet)
    assert (out / "thesis.doc").read_text() == "precious"


def test_corpus_of_another_recipe_is_kept_and_of_the_same_replaced(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})
    section = CorpusSection(text=(str(root),), **SMALL)
    build(section, tmp_path / "out", progress=quiet)
    before = (tmp_path / "out" / "index.json").read_bytes()
    with pytest.raises(UsageError, match="another recipe"):
        build(section.model_copy(update={"seed": 7}), tmp_path / "out", progress=quiet)
    build(section, tmp_path / "out", progress=quiet)
    assert (tmp_path / "out" / "index.json").read_bytes() == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_interrupted_build_leaves_no_corpus_and_goes_on_to_the_same_bytes(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})
    section = CorpusSection(text=(str(root),), **SMALL)

    def stop(*args: object) -> None:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(publish, "_write_tables", stop)
        with pytest.raises(failure):
            build(section, tmp_path / "made" / "out", progress=quiet)
    assert [path.name for path in (tmp_path / "made").iterdir()] == [".out.work"]
    monkeypatch.setattr(pieces, "read_entry", stop)  # what was read is not read again
    build(section, tmp_path / "made" / "out", progress=quiet)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["out"]
    monkeypatch.undo()
    build(section, tmp_path / "whole", progress=quiet)
    assert hashes(tmp_path / "made" / "out") == hashes(tmp_path / "whole")


def test_work_of_another_recipe_or_listing_is_not_taken_over(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})
    section = CorpusSection(text=(str(root),), **SMALL)
    work = tmp_path / ".out.work"
    (work / "read").mkdir(parents=True)
    (work / "key").write_text("another")
    (work / "read" / "stale.arrow").write_text("x")
    build(section, tmp_path / "out", progress=quiet)
    assert not work.exists()


def test_two_builds_of_one_folder_do_not_meet(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})
    section = CorpusSection(text=(str(root),), **SMALL)
    sources = gather.open_sources(section)
    with place.work_folder(tmp_path / "out", "recipe", sources):
        with pytest.raises(UsageError, match="another build is writing it"):
            build(section, tmp_path / "out", progress=quiet)


def test_leftovers_of_a_killed_build_are_cleared(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = tmp_path / f".out.{dead.pid}.partial"
    stale.mkdir()
    build(CorpusSection(text=(str(root),), **SMALL), tmp_path / "out", progress=quiet)
    assert not stale.exists()


def test_disk_that_fills_up_names_the_folder_and_leaves_nothing(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n, 300) for n in range(20)})
    script = (
        "import resource, sys\n"
        "from overland.corpus import CorpusSection, build\n"
        "from overland.errors import OverlandError\n"
        "section = CorpusSection(stdlib=False, vocab_size=320, text=(sys.argv[1],))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16000, 16000))\n"
        "try: build(section, sys.argv[2])\n"
        "except OverlandError as error: print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root), str(tmp_path / "disk" / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot be written (File too large)" in done.stdout, done.stderr
    assert [path.name for path in (tmp_path / "disk").iterdir()] == [".out.work"]
    section = CorpusSection(stdlib=False, vocab_size=320, text=(str(root),))
    build(section, tmp_path / "disk" / "out", progress=quiet)
    build(section, tmp_path / "whole", progress=quiet)
    assert hashes(tmp_path / "disk" / "out") == hashes(tmp_path / "whole")


def test_full_disk_is_an_error_that_names_the_folder(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(3)})

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish, "_write_tables", full)
    with pytest.raises(OverlandError, match="out: the disk is full"):
        build(CorpusSection(text=(str(root),), **SMALL), tmp_path / "out", progress=quiet)
    assert not (tmp_path / "out").exists()
