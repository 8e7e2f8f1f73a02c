"""Licence evidence of documents: each kind of it, and that evidence which disagrees lets nothing in.

The traps are of the kinds that were met: a package that says MIT around somebody else's text, two licences in one
repository, a page whose link says another licence than its folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from overland.corpus import CorpusSection, build, read_documents_table
from overland.corpus.evidence import Evidence, find_evidence, read_folder_evidence
from overland.corpus.sources import text_source

from .conftest import SMALL, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]
DEP5 = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: x

Files: *
Copyright: 2020 Ada Byron
License: CC-BY-4.0

Files: vendor/*
Copyright: 2019 Somebody
License: GPL-2+

License: CC-BY-4.0
 text

License: GPL-2+
 text
"""


def evidence(root: Path, path: str, text: str = "words", **more: object) -> Evidence:
    source = text_source(str(root), "text:x", None)
    return find_evidence(source.evidence, path, text, **more)  # type: ignore[arg-type]


def test_stanzas_speak_for_their_files(folder: Folder) -> None:
    pytest.importorskip("debian", reason="DEP-5 needs the extra 'corpus'")
    root = folder({"debian/copyright": DEP5, "a.txt": "x", "vendor/b.txt": "x"})
    assert evidence(root, "a.txt").expression == "CC-BY-4.0"
    assert evidence(root, "a.txt").attribution == "2020 Ada Byron"
    assert evidence(root, "vendor/b.txt").expression == "GPL-2.0-or-later"
    assert "conflicting" in evidence(root, "vendor/b.txt", "SPDX-License-Identifier: CC0-1.0\nwords").conflict


def test_holders_that_a_file_names_are_to_be_named(folder: Folder) -> None:
    head = "SPDX-License-Identifier: CC-BY-4.0\nSPDX-FileCopyrightText: 2024 Jane Roe\n\nwords"
    root = folder({"a.txt": head, "b.txt": "x", "b.txt.license": head.replace("Jane", "John")})
    assert evidence(root, "a.txt", head).attribution == "Jane Roe"
    assert evidence(root, "a.txt", head, attribution="The Book").attribution == "Jane Roe; The Book"
    assert evidence(root, "b.txt").attribution == "John Roe"


def test_copyright_of_an_installed_package_counts_only_where_all_stanzas_agree(folder: Folder) -> None:
    pytest.importorskip("debian", reason="DEP-5 needs the extra 'corpus'")
    root = folder({"one/copyright": DEP5, "one/a.txt": "x", "two/copyright": DEP5.split("Files: vendor")[0] + "\n"})
    assert evidence(root, "one/a.txt").expression == ""
    assert evidence(root, "two/a.txt").expression == "CC-BY-4.0"


def test_inner_licence_file_speaks_for_its_folder(folder: Folder) -> None:
    root = folder(
        {"LICENSE": "CC0 1.0 Universal", "in/LICENSE": "Attribution-ShareAlike 4.0 International", "a.md": "x"}
    )
    assert evidence(root, "a.md").expression == "CC0-1.0"
    assert evidence(root, "in/deep/b.md").expression == "CC-BY-SA-4.0"


def test_licence_beside_a_file_is_its_own(folder: Folder) -> None:
    root = folder({"a.txt": "x", "a.txt.license": "SPDX-License-Identifier: CC-BY-4.0\n", "b.txt": "x"})
    assert evidence(root, "a.txt") == Evidence("CC-BY-4.0", "a.txt.license")
    assert evidence(root, "b.txt") == Evidence()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package.json", json.dumps({"license": "MIT"})),
        ("pyproject.toml", '[project]\nlicense = "MIT"'),
        ("Cargo.toml", '[package]\nlicense = "MIT"'),
        ("PKG-INFO", "Metadata-Version: 2.4\nLicense-Expression: MIT\n"),
    ],
)
def test_package_metadata_is_evidence_that_its_payload_can_contradict(folder: Folder, name: str, content: str) -> None:
    root = folder({name: content, "a.txt": "x"})
    assert evidence(root, "a.txt").expression == "MIT"
    assert "conflicting" in evidence(root, "a.txt", "SPDX-License-Identifier: GPL-2.0-only\n").conflict
    assert "non-commercial use" in evidence(root, "a.txt", "This corpus is for non-commercial use only.").conflict
    root = folder({"LICENSE": "GNU GENERAL PUBLIC LICENSE Version 2"})
    assert "conflicting licences" in evidence(root, "a.txt").conflict


def test_dual_licence_is_explained_by_what_declares_it(folder: Folder) -> None:
    mit = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and"
    root = folder({"LICENSE-MIT": mit, "LICENSE-APACHE": "Apache License Version 2.0", "a.md": "x"})
    assert "conflicting" in evidence(root, "a.md").conflict
    root = folder({"Cargo.toml": '[package]\nlicense = "MIT OR Apache-2.0"'})
    assert evidence(root, "a.md").expression == "MIT OR Apache-2.0"


def test_link_of_a_page_is_evidence(folder: Folder) -> None:
    root = folder({"a.html": "x"})
    link = '<a rel="license" href="https://creativecommons.org/licenses/by-nc/4.0/">NC</a>'
    assert evidence(root, "a.html", link, page=True).expression == "CC-BY-NC-4.0"
    both = link + '<link rel="license" href="https://creativecommons.org/licenses/by/4.0/">'
    assert "conflicting" in evidence(root, "a.html", both, page=True).conflict
    root = folder({"LICENSE": "CC0 1.0 Universal"})
    assert "conflicting" in evidence(root, "a.html", link, page=True).conflict


def test_metadata_that_says_nothing_known_is_refused(folder: Folder) -> None:
    root = folder({"LICENSE": "CC0 1.0 Universal", "a.txt": "x"})
    assert "no known licence" in evidence(root, "a.txt", stated="custom, ask us").conflict
    assert "conflicting" in evidence(root, "a.txt", stated="CC BY-NC 4.0").conflict
    assert evidence(root, "a.txt", stated="CC0").expression == "CC0-1.0"


def test_unreadable_evidence_is_unknown() -> None:
    def refuse(path: str) -> object:
        raise OSError("gone")

    found = read_folder_evidence(refuse, ["LICENSE"])  # type: ignore[arg-type]
    assert find_evidence(found, "a.txt", "words").expression == ""


def test_nothing_of_the_traps_comes_in(folder: Folder, tmp_path: Path) -> None:
    traps = {
        "unknown.txt": prose(1),
        "nc.txt": "SPDX-License-Identifier: CC-BY-NC-4.0\n" + prose(2),
        "nd.txt": "SPDX-License-Identifier: CC-BY-ND-4.0\n" + prose(3),
        "and.txt": "SPDX-License-Identifier: CC-BY-4.0 AND CC-BY-NC-4.0\n" + prose(4),
        "typo.txt": "SPDX-License-Identifier: CC-BY-4\n" + prose(5),
        "mit.txt": "SPDX-License-Identifier: MIT\n" + prose(6),
        "restricted.txt": "SPDX-License-Identifier: CC-BY-4.0\nFor non-commercial use only.\n" + prose(7),
        "two.txt": "SPDX-License-Identifier: CC0-1.0\nSPDX-License-Identifier: CC-BY-4.0\n" + prose(8),
        "records.jsonl": "".join(
            json.dumps({"text": prose(f"r{n}"), "license": said}) + "\n"
            for n, said in enumerate(["CC BY-NC 4.0", "unknown", "with permission", None, "CC-BY", "MIT License"])
        ),
    }
    good = {
        "good.txt": "SPDX-License-Identifier: CC-BY-SA-4.0\n" + prose(9),
        "or.txt": "SPDX-License-Identifier: MIT OR CC0-1.0\n" + prose(10),
        "good.jsonl": json.dumps({"text": prose("g"), "license": "CC BY 4.0"}) + "\n",
    }
    root = folder({**traps, **good})
    build(CorpusSection(text=(str(root),), **SMALL), tmp_path / "out", progress=quiet)
    rows = read_documents_table(tmp_path / "out").to_pylist()
    kept = {row["path"]: row["licence"] for row in rows if row["decision"] != "dropped"}
    assert kept == {"good.txt": "CC-BY-SA-4.0", "or.txt": "CC0-1.0", "good.jsonl#1": "CC-BY-4.0"}
    assert all(row["reason"] for row in rows if row["decision"] == "dropped")
    assert len(rows) == 17
