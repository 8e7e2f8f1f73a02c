"""The whole build: what it writes, that it writes the same again, and what each document's row says.

Token ids are held against Hugging Face `tokenizers` reading the written tokenizer.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from overland.chat import SPECIAL_TOKENS, load_tokenizer
from overland.corpus import (
    CorpusReport,
    CorpusSection,
    build,
    gather,
    heldout_documents,
    inspect,
    inspect_document,
    read_documents_table,
)
from overland.corpus.shards import Stream
from overland.corpus.sources import stdlib_source
from overland.errors import UsageError

from .conftest import SMALL, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]
CC0 = "SPDX-License-Identifier: CC0-1.0\n\n"


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    return {row["path"] + ":" + row["domain"]: row for row in read_documents_table(out).to_pylist()}


def build_quietly(root: Path, out: Path, **fields: Any) -> CorpusReport:
    return build(CorpusSection(**{**SMALL, "text": (str(root),), **fields}), out, progress=quiet)


def test_shards_hold_what_hugging_face_makes_of_the_texts(small: tuple[Path, CorpusReport]) -> None:
    out, report = small
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    eos = tokenizer.token_to_id("[EOS]")
    index = json.loads((out / "index.json").read_text())
    texts = {row["id"]: (out.parent / "texts" / row["path"]).read_text() for row in rows_of(out).values()}
    checked = 0
    for split in index["splits"].values():
        for shard in split["shards"]:
            tokens = np.fromfile(out / shard["file"], dtype="<u2")
            assert len(tokens) == shard["tokens"]
            assert hashlib.sha256((out / shard["file"]).read_bytes()).hexdigest() == shard["sha256"]
            for document, start, end, n_bytes in shard["documents"]:
                assert tokens[start] == eos
                assert tokens[start + 1 : end].tolist() == tokenizer.encode(texts[document]).ids
                assert n_bytes == len(texts[document].encode())
                checked += 1
    assert checked == report.documents["kept"] == 40
    assert len(index["splits"]["train"]["shards"]) > 1


def test_report_and_lineage_agree_with_the_table(small: tuple[Path, CorpusReport]) -> None:
    out, report = small
    rows = rows_of(out).values()
    lineage = json.loads((out / "lineage.json").read_text())
    assert sum(row["tokens"] for row in rows) == report.train_tokens + report.heldout_tokens
    assert lineage["licences"]["CC0-1.0"]["tokens"] == report.train_tokens + report.heldout_tokens
    assert lineage["licences"]["CC0-1.0"]["attribution_owed"] == []
    for name, digest in lineage["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest


def test_heldout_documents_spell_their_bytes(small: tuple[Path, CorpusReport]) -> None:
    out, report = small
    tokenizer = load_tokenizer(out)
    documents = list(heldout_documents(out))
    assert len(documents) == report.heldout_documents > 0
    assert sum(n_bytes for _, n_bytes in documents) == report.heldout_bytes
    for ids, n_bytes in documents:
        assert ids[0] == tokenizer.special("[EOS]")
        assert len(tokenizer.bytes_of(ids[1:].tolist())) == n_bytes


def test_token_leads_back_to_its_document(small: tuple[Path, CorpusReport]) -> None:
    out, report = small
    for token in (0, report.train_tokens // 2, report.train_tokens - 1):
        row = inspect(out, token)
        assert row["token_start"] <= token < row["token_end"]
        source = (out.parent / "texts" / row["path"]).read_bytes()
        assert hashlib.sha256(source).hexdigest() == row["sha256_in"]
        assert hashlib.sha256(row["text"].encode()).hexdigest() == row["sha256_out"]


def test_same_recipe_gives_the_same_bytes(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(8)})
    for name in ("a", "b"):
        build_quietly(root, tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) >= 5
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_each_row_says_what_was_decided_and_why(folder: Folder, tmp_path: Path) -> None:
    shared = prose("shared", 40)
    code = (
        CC0.replace("SPDX", "# SPDX")
        + 'import re\n\n\ndef f(x):\n    """'
        + prose("doc", 70)
        + '"""\n    return x + 1\n'
    )
    root = folder(
        {
            "a.txt": CC0 + prose("a") + "\n" + shared,
            "b.md": CC0 + prose("b") + "\n" + shared,
            "copy.txt": CC0 + prose("c"),
            "copy2.txt": "  " + CC0 + prose("c"),
            "mit.txt": "SPDX-License-Identifier: MIT\n" + prose("d"),
            "none.rst": prose("e"),
            "short.txt": CC0 + "Too short.",
            "broken.txt": b"GIF89a \x00\x01",
            "latin.txt": CC0.encode() + prose("g").encode() + b"caf\xe9",
            "module.py": code,
            "page.html": "<!-- SPDX-License-Identifier: CC-BY-4.0 -->\n<html><head><style>p {}</style></head>"
            f"<body><script>var x</script><p>{prose('f')}</p></body></html>",
            "mail.txt": CC0 + prose("m") + "Write to ada@example.org or ada@example.org.\n",
        }
    )
    build_quietly(root, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    trimmed = [rows[name] for name in ("a.txt:prose", "b.md:prose") if rows[name]["decision"] == "trimmed"]
    assert len(trimmed) == 1
    assert trimmed[0]["spans_removed"][0]["reason"].startswith("repeats ")
    copies = [rows[name]["decision"] for name in ("copy.txt:prose", "copy2.txt:prose")]
    assert sorted(copies) == ["dropped", "kept"]
    assert "MIT is not in profile cc" in rows["mit.txt:prose"]["reason"]
    assert rows["none.rst:prose"]["reason"] == "licence: unknown licence"
    assert rows["short.txt:prose"]["reason"] == "quality: prose.min_words"
    assert rows["broken.txt:prose"]["reason"] == "binary: NUL bytes"
    assert rows["latin.txt:prose"]["reason"].startswith("encoding")
    assert rows["module.py:code"]["decision"] == rows["module.py:prose"]["decision"] == "kept"
    assert rows["module.py:code"]["split"] == rows["module.py:prose"]["split"]
    assert rows["page.html:prose"]["licence"] == "CC-BY-4.0"
    assert dict(rows["mail.txt:prose"]["pii_replaced"]) == {"email": 2}
    for row in rows.values():
        assert (row["decision"] == "dropped") == (row["split"] == "")
        assert row["reason"] or row["decision"] == "kept"


def test_vocabulary_has_the_size_asked_for_and_the_callers_words(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(6)})
    extra = ["run_shell quotient", "answer quotient run_shell"]
    section = CorpusSection(text=(str(root),), **{**SMALL, "vocab_size": 400})
    build(section, tmp_path / "out", tokenizer_extra_text=extra, progress=quiet)
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.vocab_size == 400
    assert [tokenizer.special(name) for name in SPECIAL_TOKENS] == list(range(400 - len(SPECIAL_TOKENS), 400))
    assert len(tokenizer.encode("quotient")) == len(tokenizer.encode("shell")) == 1


def test_name_is_spelled_alike_wherever_it_stands(small: tuple[Path, CorpusReport]) -> None:
    tokenizer = load_tokenizer(small[0])
    name = tokenizer.encode("berta")
    for before, after in (("", " x"), ("the ", "."), ('"', '"'), ("\n    ", "\n"), ("12", "3")):
        ids = tokenizer.encode(before + "berta" + after)
        assert any(ids[i : i + len(name)] == name for i in range(len(ids)))
    assert len(tokenizer.encode("2048")) == 4


def test_budget_is_kept_and_drawn_by_the_seed(folder: Folder, tmp_path: Path) -> None:
    root = folder({f"{n}.txt": CC0 + prose(n, 200) for n in range(30)})
    kept = []
    for seed in (0, 1):
        report = build_quietly(root, tmp_path / str(seed), seed=seed, max_megabytes=0.01)
        assert 7_000 < report.train_bytes + report.heldout_bytes <= 10_000
        kept.append({path for path, row in rows_of(tmp_path / str(seed)).items() if row["decision"] == "kept"})
    assert kept[0] != kept[1]


def test_standard_library_gives_code_and_prose_under_its_authorisation(tmp_path: Path) -> None:
    report = build(CorpusSection(max_megabytes=0.4), tmp_path / "out", progress=quiet)
    assert set(report.licences) == {"PSF-2.0"}
    assert report.licences["PSF-2.0"]["must_name_authors"]
    assert set(report.domains) == {"code", "prose"}
    assert report.vocab_size == 640
    rows = rows_of(tmp_path / "out").values()
    assert not any("site-packages" in row["path"] or "test" in row["path"].split("/")[:-1] for row in rows)
    assert all("authorised by" in row["licence_evidence"] for row in rows if row["decision"] == "kept")


def test_without_its_authorisation_the_standard_library_stays_out(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = stdlib_source()
    library.files = library.files[:20]
    monkeypatch.setattr(gather, "stdlib_source", lambda: library)
    root = folder({f"{n}.txt": CC0 + prose(n) for n in range(4)})
    fields = {"stdlib": True, "authorisations": (), "max_megabytes": 0.05}
    report = build_quietly(root, tmp_path / "out", **fields)
    assert set(report.licences) == {"CC0-1.0"}


def test_held_out_documents_are_near_no_training_document(folder: Folder, tmp_path: Path) -> None:
    texts = {f"{n}.txt": CC0 + prose(n, 150) for n in range(30)}
    texts |= {f"copy{n}.txt": texts[f"{n}.txt"] + "And so on." for n in range(30)}
    root = folder(dict(texts))
    report = build_quietly(root, tmp_path / "out", heldout=0.3)
    assert report.reasons["near duplicate"] == 30
    grams = {
        row["path"]: (row["split"], set(zip(*(texts[row["path"]].split()[i:] for i in range(5)), strict=False)))
        for row in rows_of(tmp_path / "out").values()
        if row["split"]
    }
    held = [g for split, g in grams.values() if split == "heldout"]
    train = [g for split, g in grams.values() if split == "train"]
    assert len(held) >= 3
    assert max(len(a & b) / len(a | b) for a in held for b in train) < 0.5


def test_a_document_is_found_by_its_token_and_by_its_name(folder: Folder, tmp_path: Path) -> None:
    code = '"""' + prose("doc", 90) + '"""\n' + "".join(f"name_{n} = other(name_{n})\n" for n in range(30))
    root = folder({"LICENSE": "CC0 1.0 Universal", "a.py": code, "é.txt": "é" * 9 + prose(1), "short.txt": "few words"})
    out = tmp_path / "out"
    build_quietly(root, out, heldout=0.0)
    stream = Stream(out, "train")
    tokenizer = load_tokenizer(out / "tokenizer.json")
    for token in range(0, len(stream), 7):
        row = inspect(out, token)
        spelled = tokenizer.bytes_of([int(stream.read(token, 1)[0])])
        if token > row["token_start"] and spelled[0] < 128:  # a token may begin inside a character
            assert row["text"][row["before"] :].encode().startswith(spelled)
    module, docs = sorted(inspect_document(out, "a.py"), key=lambda row: row["domain"])
    assert module["text"] == code
    assert docs["text"].strip() == prose("doc", 90).strip()
    assert module["licence_evidence"] == docs["licence_evidence"] == "LICENSE"
    (dropped,) = inspect_document(out, "short.txt")
    assert dropped["history"][-1]["rule"] == "prose.min_words"
    assert "text" not in dropped
    assert inspect_document(out, dropped["id"]) == [dropped]
    with pytest.raises(UsageError, match=r"'short'; there are short\.txt"):
        inspect_document(out, "short")
