"""Memory of a build: what duplicates know goes on in files, and a Parquet file is read by row groups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overland.corpus import CorpusSection, build, clean
from overland.corpus.compiled import Packed
from overland.corpus.dedup_documents import NearDocuments
from overland.corpus.dedup_spans import RepeatedSpans
from overland.corpus.section import SourceSection
from overland.corpus.sources import declared_source
from overland.errors import OverlandError

from .conftest import SMALL, hashes, prose, quiet


def texts() -> list[str]:
    """Fresh texts, near copies, and texts that quote others."""
    out = []
    for n in range(120):
        fresh = prose(n, 150)
        out += [fresh, prose(n, 150) + " and more"] if n % 4 == 0 else [fresh + "\n" + prose(n // 2, 80)]
    return out


@pytest.mark.parametrize("kind", [NearDocuments, RepeatedSpans])
def test_a_spilled_index_decides_the_same(kind: type[NearDocuments] | type[RepeatedSpans], tmp_path: Path) -> None:
    given = texts()
    ids = [str(n) for n in range(len(given))]
    expected = kind().add(Packed.of(given), ids)
    index = kind()
    found: list[object] = []
    for n, text in enumerate(given):
        if n % 10 == 5:
            index.spill(tmp_path)
        found += index.add(Packed.of([text]), [ids[n]])
    assert found == expected
    assert any(expected)
    assert not list(tmp_path.iterdir())  # the files have no names, so a killed build leaves none


ALONE = """
import os, sys
from pathlib import Path
from overland.corpus.compiled import Packed
from overland.corpus.dedup_documents import NearDocuments
from overland.corpus.dedup_spans import RepeatedSpans
from tests.corpus.conftest import prose

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

index = {"NearDocuments": NearDocuments, "RepeatedSpans": RepeatedSpans}[sys.argv[1]]()
index.add(Packed.of([prose(n, 4000) for n in range(250)]), [str(n) for n in range(250)])
before = resident()
index.spill(Path(sys.argv[2]))
print(before - resident(), index.n_bytes)
"""


@pytest.mark.parametrize("kind", ["NearDocuments", "RepeatedSpans"])
def test_a_spilled_index_is_not_the_processs_memory(kind: str, tmp_path: Path) -> None:
    """In a process of its own: one that has run other tests gives freed memory back when it likes."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, kind, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    freed, held = map(int, done.stdout.split())
    assert freed > 0.6 * held


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(OverlandError, match="missing: no room on the disk"):
        NearDocuments().spill(tmp_path / "missing")


def parquet(path: Path, group: int) -> None:
    rows = {"text": texts(), "license": ["CC0-1.0"] * len(texts())}
    pq.write_table(pa.table(rows), path, row_group_size=group)


def test_workers_share_the_row_groups_of_a_parquet_file(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", 40)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    source = declared_source(SourceSection(name="a", path=str(tmp_path)))
    assert [(file.path, file.groups) for file in source.files] == [
        *[("a.parquet", (n, n + 1)) for n in range(4)],
        ("b.parquet", None),
    ]


def test_memory_and_row_groups_change_nothing_of_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {}
    for name, group in (("one", 1000), ("four", 40)):
        place = tmp_path / name
        place.mkdir()
        parquet(place / "a.parquet", group)
        section = CorpusSection(source=(SourceSection(name="a", path=str(place)),), **SMALL)
        build(section, tmp_path / f"{name}-out", progress=quiet)
        kept[name] = hashes(tmp_path / f"{name}-out" / "shards")
        # Nothing fits in memory, and pages are given back after every document.
        monkeypatch.setattr(clean, "_SHARE", 0.0)
        monkeypatch.setattr(clean, "_CHECK_EVERY", 1)
    assert kept["one"] == kept["four"]
