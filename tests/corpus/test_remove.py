"""Removal: what was asked for is gone from every file, the rest is as it was, and both can be shown.

Held against a corpus that was built without the removed texts: the remaining documents' tokens must be the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from overland.corpus import (
    CorpusSection,
    SourceSection,
    TokenLoader,
    build,
    inspect,
    read_decisions,
    read_documents_table,
    remove,
)
from overland.corpus.shards import open_shard, read_index
from overland.errors import BrokenFileError, OverlandError, UsageError

from .conftest import SMALL, hashes, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]


@pytest.fixture
def corpus(folder: Folder, tmp_path: Path) -> Path:
    """Thirty texts of three sources in several shards; some with an address, one a near copy of another."""
    for name in ("a", "b", "c"):
        folder({f"{name}/{n}.txt": prose(f"{name}{n}", 150) + f"By {name}{n}@example.org.\n" for n in range(10)})
    root = folder({"c/copy.txt": prose("a3", 150) + "By a3@example.org. And more.\n"})
    sources = tuple(
        SourceSection(name=name, path=str(root / name), licence="CC-BY-4.0", attribution=f"Author {name}")
        for name in ("a", "b", "c")
    )
    build(CorpusSection(source=sources, **{**SMALL, "shard_tokens": 2048}), tmp_path / "out", progress=quiet)
    return tmp_path / "out"


def tokens_of(corpus: Path) -> dict[str, bytes]:
    out = {}
    for split in read_index(corpus)["splits"].values():
        for shard in split["shards"]:
            tokens = open_shard(corpus, shard)
            for name, start, end, _ in shard["documents"]:
                out[name] = tokens[start:end].tobytes()
    return out


def rows(corpus: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_documents_table(corpus).to_pylist()}


def test_source_is_gone_from_every_file_and_the_rest_is_as_it_was(corpus: Path) -> None:
    before, table = tokens_of(corpus), rows(corpus)
    gone = {key for key, row in table.items() if row["source"] == "a" and row["split"]}
    assert len(gone) == 10
    done = remove(corpus, source="a", who="Author a", reason="withdrawn", date="2026-12-01")
    assert set(done.ids) == gone
    assert (done.documents, done.copies_not_restored) == (10, 1)
    assert tokens_of(corpus) == {key: value for key, value in before.items() if key not in gone}
    shards = b"".join(path.read_bytes() for path in (corpus / "shards").iterdir())
    assert not any(before[key] in shards for key in gone)
    after = rows(corpus)
    for key, row in after.items():
        if key in gone:
            assert (row["decision"], row["tokens"], row["split"]) == ("dropped", 0, "")
            assert row["reason"] == "removed on request 1: withdrawn"
            assert read_decisions(corpus, key)[-1]["value"] == "Author a"
        else:
            assert row == table[key]
    lineage = json.loads((corpus / "lineage.json").read_text())
    assert lineage["removed"] == [done.to_dict()]
    assert lineage["licences"]["CC-BY-4.0"]["attribution_owed"] == ["Author b", "Author c"]
    assert lineage["figures"]["train_tokens"] == len(TokenLoader(corpus, batch=1, length=8).stream)
    assert "Author a" not in (corpus / "ATTRIBUTION.md").read_text()
    for name, digest in lineage["files"].items():
        assert hashlib.sha256((corpus / name).read_bytes()).hexdigest() == digest
    assert not [path for path in corpus.parent.iterdir() if path.name.startswith(".")]


def test_documents_are_removed_by_id_and_by_pattern_one_request_after_the_other(corpus: Path) -> None:
    token = 700
    row = inspect(corpus, token)
    remove(corpus, ids=[row["id"]], date="2026-12-01")
    assert inspect(corpus, token)["id"] != row["id"]
    done = remove(corpus, matching=r"^[2-4]\.txt$", date="2026-12-02")
    left = {row["path"] for row in rows(corpus).values() if row["split"]}
    assert not left & {"2.txt", "3.txt", "4.txt"}
    assert done.number == 2
    assert [entry["number"] for entry in json.loads((corpus / "lineage.json").read_text())["removed"]] == [1, 2]
    index = read_index(corpus)
    positions = [
        entry for split in index["splits"].values() for shard in split["shards"] for entry in shard["documents"]
    ]
    assert all(start < end for _, start, end, _ in positions)


def test_unchanged_shards_are_linked_and_changed_ones_are_checked(corpus: Path) -> None:
    index = read_index(corpus)
    first = index["splits"]["train"]["shards"][0]
    last = index["splits"]["train"]["shards"][-1]
    node = os.stat(corpus / last["file"]).st_ino
    done = remove(corpus, ids=[first["documents"][0][0]], date="2026-12-01")
    assert done.shards_rewritten == 1
    assert os.stat(corpus / last["file"]).st_ino == node
    assert done.proof["documents_checked"] == len(tokens_of(corpus))
    data = bytearray((corpus / first["file"]).read_bytes())
    data[5] ^= 1
    (corpus / first["file"]).write_bytes(data)
    before = hashes(corpus)
    with pytest.raises(BrokenFileError, match="sha256"):
        remove(corpus, ids=[first["documents"][1][0]])
    assert hashes(corpus) == before


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "say what to remove"),
        ({"ids": ["nobody"]}, "no such document"),
        ({"source": "zeta"}, "the corpus has a, b, c"),
        ({"matching": "("}, "no regular expression"),
        ({"matching": "nothing like this"}, "nothing was done"),
        ({"source": "*"}, "would leave nothing"),
    ],
)
def test_wrong_request_is_refused_and_changes_nothing(corpus: Path, asked: dict[str, Any], said: str) -> None:
    before = hashes(corpus)
    with pytest.raises(UsageError, match=said):
        remove(corpus, **asked)
    assert hashes(corpus) == before


def test_failed_proof_leaves_the_old_corpus(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["overland.corpus.remove"]
    rewrite = module._rewrite_shards

    def forget_one(folder: Path, fresh: Path, index: dict[str, Any], gone: set[str]) -> tuple[int, int, set[bytes]]:
        rewritten, tokens, found = rewrite(folder, fresh, index, gone)
        shard = index["splits"]["train"]["shards"][0]
        _, start, end, _ = shard["documents"][0]
        found.add(hashlib.sha256(open_shard(fresh, shard)[start:end].tobytes()).digest())
        return rewritten, tokens, found

    monkeypatch.setattr(module, "_rewrite_shards", forget_one)
    before = hashes(corpus)
    with pytest.raises(OverlandError, match="still has removed text"):
        remove(corpus, source="c")
    assert hashes(corpus) == before


def test_every_decision_names_its_rule_value_and_threshold(corpus: Path) -> None:
    decisions = pq.read_table(corpus / "decisions.parquet").to_pylist()
    stages = {row["stage"] for row in decisions}
    assert {"licence", "quality", "personal data", "near duplicate"} <= stages
    (copy,) = [row for row in decisions if row["stage"] == "near duplicate"]
    assert float(copy["value"]) > float(copy["threshold"]) == 0.75
    changed = [row for row in decisions if row["stage"] == "personal data"]
    final = rows(corpus)
    for row in changed:
        assert row["sha256_before"] != row["sha256_after"] == final[row["id"]]["sha256_out"]
    assert {row["id"] for row in decisions} == set(final)
    shown = inspect(corpus, 3)
    assert [step["stage"] for step in shown["history"]][:2] == ["licence", "quality"]
