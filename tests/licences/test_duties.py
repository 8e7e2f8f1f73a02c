"""What a model folder says about its training text's licences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overland.errors import BrokenFileError, UsageError
from overland.licences import duties, duties_of

BILL = {
    "CC-BY-4.0": {"documents": 2, "tokens": 1200, "bytes": 9, "sources": ["text:notes"], "attribution_owed": ["Mira"]}
}
WORD = {"licence": "CC-BY-4.0", "who": "a person", "reason": "it permits this", "until": "2030-01-01"}


def folder(path: Path, lineage: object, **files: str) -> Path:
    (path / "lineage.json").write_text(lineage if isinstance(lineage, str) else json.dumps(lineage))
    for name, text in files.items():
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("nested", [False, True])
def test_the_bill_is_told_with_what_each_licence_asks(nested: bool, tmp_path: Path) -> None:
    lineage = {"licences": BILL, "authorisations": [WORD, {**WORD, "licence": "PSF-2.0"}]}
    said = "\n".join(duties(folder(tmp_path, {"corpus": lineage} if nested else lineage, NOTICE="x")).lines())
    assert "CC-BY-4.0: 1,200 tokens of text:notes" in said
    assert "you must name the authors" in said
    assert "to be named: Mira" in said
    assert "CC-BY-4.0 by a person until 2030-01-01: it permits this" in said
    assert "PSF-2.0" not in said  # no text is under it
    assert "carried along  NOTICE" in said


def test_each_kind_of_licence_asks_for_its_own() -> None:
    assert duties_of("CC0-1.0") == []
    assert duties_of("MIT")[0] == "name the authors"
    assert "share adaptations under the same licence" in duties_of("CC-BY-SA-4.0")
    assert "share adaptations under the same licence" in duties_of("MIT AND GPL-3.0-only")
    assert duties_of("no licence at all") == ["read its own terms: it is no SPDX licence"]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such model folder"):
        duties(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"lineage\.json: is missing"):
        duties(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"licences": 3}'])
def test_a_damaged_lineage_is_named(content: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFileError, match=r"lineage\.json: holds no bill of licences"):
        duties(folder(tmp_path, content))
