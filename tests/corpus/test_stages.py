"""Every stage that a recipe can turn on, in a whole build: what it decides, what it says of it, what it leaves alone.

Each stage is checked on texts made so that the right answer is known; the workers' and the killed builds' bytes are
held against those of one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overland.corpus import CorpusReport, CorpusSection, build, read_decisions, read_documents_table, remove
from overland.corpus.compiled import Packed
from overland.corpus.document import Span
from overland.corpus.quality_classifier import QualityClassifier, train_classifier
from overland.corpus.trimming import before_cuts, disjoint
from overland.errors import BrokenFileError, UsageError

from .conftest import RARE, SMALL, hashes, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]
CC0 = "SPDX-License-Identifier: CC0-1.0\n\n"
GERMAN = (
    "Der Ausschuss kommt in der nächsten Woche wieder zusammen, um den Vorschlag zu beraten. Die Mitglieder haben ihre "
    "Bemerkungen schon eingereicht, und der Vorsitzende fasst sie in einem kurzen Bericht zusammen. Danach stimmt die "
    "Versammlung ab, ob der Entwurf in dieser Form angenommen wird oder noch einmal überarbeitet werden muss. Alle "
    "Unterlagen liegen im Büro aus, und wer Fragen hat, kann sich dort melden.\n"
)


def built(root: Path, out: Path, **fields: Any) -> CorpusReport:
    return build(CorpusSection(**{**SMALL, "text": (str(root),), **fields}), out, progress=quiet)


def rows(out: Path) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in read_documents_table(out).to_pylist()}


def decision(out: Path, path: str, stage: str) -> dict[str, Any]:
    (found,) = [d for d in read_decisions(out, rows(out)[path]["id"]) if d["stage"] == stage]
    return found


def test_repeated_lines_and_substrings_are_cut_where_they_stand(folder: Folder, tmp_path: Path) -> None:
    line = "A " + " ".join(RARE[:14]) + " line.\n"
    shared = "\n".join(" ".join(RARE[i : i + 6][::-1]) for i in range(0, 54, 6))  # 54 words in lines of 6
    texts = {
        "a.txt": CC0 + prose(1) + line + prose(2),
        "b.txt": CC0 + prose(3) + line + prose(4),
        "c.txt": CC0 + prose(5) + "é " + shared + prose(6),
        "d.txt": CC0 + prose(7) + "é " + shared + prose(8),
    }
    root = folder(texts)
    report = built(root, tmp_path / "out", line_words=12, substring_bytes=200, span_words=0)
    found = rows(tmp_path / "out")
    removed = {name: [texts[name][s["start"] : s["end"]] for s in row["spans_removed"]] for name, row in found.items()}
    cut = removed.pop("d.txt" if removed["d.txt"] else "c.txt")
    assert len(cut) == 1
    assert shared in cut[0]
    removed.pop("d.txt", None), removed.pop("c.txt", None)
    assert sorted(removed.values()) == [[], [line]]
    said = decision(tmp_path / "out", "b.txt" if removed["b.txt"] else "a.txt", "repeated lines")
    assert (said["rule"], said["value"], said["threshold"]) == ("line_words", str(len(line)), "12")
    assert report.characters_cut == {"repeated lines": len(line), "repeated substrings": len(cut[0])}
    assert report.stages["repeated substrings"] == {"trim": 1}


def test_evaluation_items_are_cut_or_their_document_dropped(folder: Folder, tmp_path: Path) -> None:
    question = prose("question", 40)
    code = "".join(f"def f{n}(x):\n    return x * {n} + {n * n}\n\n" for n in range(20))
    root = folder(
        {
            "few.txt": CC0 + prose(1, 300) + question + prose(2, 300),
            "most.txt": CC0 + prose(3, 60) + question,
            "none.txt": CC0 + prose(4),
            "code.py": "# " + CC0 + code + f"TEXT = '''{question}'''\n",
        }
    )
    sets = tmp_path / "evals"
    sets.mkdir()
    (sets / "a.jsonl").write_text(json.dumps({"id": "q1", "question": question, "answer": "42"}) + "\n")
    pq.write_table(pa.table({"prompt": [prose("another", 40)]}), sets / "b.parquet")
    asked = {"sets": (str(sets),)}
    report = built(root, tmp_path / "out", decontamination=asked)
    found = rows(tmp_path / "out")
    assert found["few.txt"]["decision"] == "trimmed"
    (span,) = found["few.txt"]["spans_removed"]
    assert (root / "few.txt").read_text()[span["start"] : span["end"]].strip() == question.strip()
    assert span["reason"] == "holds evaluation item evals/a.jsonl#q1.question"
    for name in ("most.txt", "code.py"):
        assert found[name]["reason"] == "decontamination: holds evaluation items"
        assert decision(tmp_path / "out", name, "decontamination")["detail"] == "holds evals/a.jsonl#q1.question"
    assert report.stages["decontamination"] == {"drop": 2, "pass": 1, "trim": 1}
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    assert (lineage["evaluation"]["items"], lineage["evaluation"]["too_short"]) == (3, 1)
    (sets / "a.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="holds a corpus of another recipe"):  # other items are another recipe
        built(root, tmp_path / "out", decontamination=asked)
    (sets / "b.parquet").unlink()
    with pytest.raises(UsageError, match="has no item; its records need one of the fields question"):
        built(root, tmp_path / "new", decontamination=asked)
    (sets / "a.jsonl").write_text(json.dumps({"question": question}) + "\n{oops\n")
    with pytest.raises(UsageError, match="not JSON; an evaluation set must be whole"):
        built(root, tmp_path / "new", decontamination=asked)
    assert not (tmp_path / "new").exists()


def test_languages_are_found_out_believed_and_kept(folder: Folder, tmp_path: Path) -> None:
    records = [{"id": "stated", "text": prose("s"), "language": "de"}, {"id": "found", "text": GERMAN}]
    root = folder(
        {
            "LICENSE": "CC0 1.0 Universal",
            "a.jsonl": "".join(json.dumps(record) + "\n" for record in records),
            "b.txt": "It is the case that the committee will meet next week to consider the proposal. " * 5,
            "c.py": "def f(x):\n    return x + 1\n" + "".join(f"name_{n} = other\n" for n in range(40)),
        }
    )
    fields = {"prose": {"max_duplicate_line_chars": 1.0, "max_top_2gram": 1.0, "max_top_3gram": 1, "max_top_4gram": 1}}
    built(root, tmp_path / "off", **fields)
    assert {row["language"] for row in rows(tmp_path / "off").values()} == {"de", "und", "en", "python"}
    report = built(root, tmp_path / "out", language={"identify": True, "keep": ("de",)}, rejected_samples=1, **fields)
    found = rows(tmp_path / "out")
    assert {path: row["language"] for path, row in found.items()} == {
        "a.jsonl#stated": "de", "a.jsonl#found": "de", "b.txt": "en", "c.py": "python",
    }  # fmt: skip
    assert [row["decision"] for row in found.values() if row["language"] == "en"] == ["dropped"]
    assert report.reasons == {"language: en": 1}
    (sample,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    assert (sample["path"], sample["value"], sample["threshold"]) == ("b.txt", "en", "de")
    assert sample["text"].startswith("It is the case that the committee")


def test_classifier_is_trained_measured_and_held_to_its_threshold(folder: Folder, tmp_path: Path) -> None:
    def spam(n: int) -> str:
        return prose(f"spam {n}").replace("ber", "buy").replace("cal", "now")

    model = train_classifier({"keep": [prose(n) for n in range(60)], "reject": [spam(n) for n in range(60)]})
    assert model.evaluation
    assert (model.evaluation.texts, model.evaluation.accuracy > 0.95) == (24, True)
    path = tmp_path / "model.index"
    model.save(path)
    again = QualityClassifier.load(path)
    texts = Packed.of([prose("x"), spam(99)])
    assert again.evaluation == model.evaluation
    assert (again.scores(texts) == model.scores(texts)).all()
    root = folder({"good.txt": CC0 + prose("x") * 3, "bad.txt": CC0 + spam(99), "code.py": "# " + CC0 + "x = 1\n" * 30})
    report = built(root, tmp_path / "out", classifier={"path": str(path)}, rejected_samples=3)
    assert rows(tmp_path / "out")["bad.txt"]["reason"] == "classifier: not keep"
    said = decision(tmp_path / "out", "bad.txt", "classifier")
    assert float(said["value"]) < float(said["threshold"]) == 0.5
    assert report.stages["classifier"]["drop"] == 1
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    assert lineage["classifier"]["evaluation"]["accuracy"] == model.evaluation.accuracy
    with pytest.raises(UsageError, match=r"is no label of .*; it knows keep, reject"):
        built(root, tmp_path / "new", classifier={"path": str(path), "label": "good"})
    with pytest.raises(UsageError, match="train one with: overland corpus classifier"):
        built(root, tmp_path / "new", classifier={"path": str(tmp_path / "none")})
    with pytest.raises(UsageError, match="label reject has 2 different texts"):
        train_classifier({"keep": [prose(n) for n in range(60)], "reject": [spam(1), spam(2)]})
    with pytest.raises(UsageError, match="both keep and reject"):
        train_classifier({"keep": [prose(1)], "reject": [prose(1)]})


def test_later_build_keeps_only_what_is_new(folder: Folder, tmp_path: Path) -> None:
    passage = prose("passage", 80)
    old = {f"old/{n}.txt": CC0 + prose(n, 200) for n in range(6)}
    new = {
        "new/exact.txt": old["old/0.txt"],
        "new/near.txt": old["old/1.txt"] + "And a little more.\n",
        "new/span.txt": CC0 + prose("n1", 150) + passage + prose("n2", 150),
        "new/fresh.txt": CC0 + prose("n3", 200),
    }
    folder({**old, "old/passage.txt": CC0 + prose("p1", 150) + passage + prose("p2", 150), **new})
    root = folder({})
    save = {"save": True}
    built(root / "old", tmp_path / "first", index=save, line_words=15)
    second = {"against": str(tmp_path / "first"), **save}
    built(root / "new", tmp_path / "second", index=second, line_words=15)
    found = rows(tmp_path / "second")
    first = {row["path"]: row["id"] for row in rows(tmp_path / "first").values()}
    assert found["exact.txt"]["reason"] == f"exact duplicate of {first['0.txt']}"
    assert found["near.txt"]["reason"].startswith(f"near duplicate of {first['1.txt']}")
    assert found["span.txt"]["decision"] == "trimmed"
    assert all(first["passage.txt"] in span["reason"] for span in found["span.txt"]["spans_removed"])
    assert found["fresh.txt"]["decision"] == "kept"
    # The second index knows the first build's texts as well: all is old to a third.
    third = {"text": (str(root / "old"), str(root / "new"))}
    with pytest.raises(UsageError, match=r"nothing is left|none of its"):
        built(root, tmp_path / "third", index={"against": str(tmp_path / "second")}, **third)
    # A build at once drops the same ones.
    built(root, tmp_path / "once", text=(str(root / "old"), str(root / "new")), line_words=15)
    once = {row["path"]: row["decision"] for row in rows(tmp_path / "once").values()}
    assert {path: row["decision"] for path, row in found.items()} == {path: once[path] for path in found}
    with pytest.raises(UsageError, match="has no folder 'duplicates'"):
        built(root / "new", tmp_path / "fourth", index={"against": str(tmp_path / "once")})
    part = tmp_path / "first" / "duplicates" / "near-0.index"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(BrokenFileError, match=r"near-0\.index"):
        built(root / "new", tmp_path / "fourth", index={"against": str(tmp_path / "first")})


def test_later_build_cuts_what_an_earlier_one_has_byte_for_byte(folder: Folder, tmp_path: Path) -> None:
    passage = "|".join(RARE[:60]) + "\n"  # one word, so that no other stage knows it
    folder({"old/a.txt": CC0 + prose("o1", 90) + passage + prose("o2", 90), "old/b.txt": CC0 + prose("o3", 90)})
    folder({"new/a.txt": CC0 + prose("n1", 90) + passage + prose("n2", 90), "new/b.txt": CC0 + prose("n3", 90)})
    root, stages = folder({}), {"substring_bytes": 200}
    built(root / "old", tmp_path / "first", index={"save": True}, **stages)
    report = built(root / "new", tmp_path / "second", index={"against": str(tmp_path / "first")}, **stages)
    assert len(passage) - 2 * 20 < report.characters_cut["repeated substrings"] <= len(passage) + 2
    (span,) = rows(tmp_path / "second")["a.txt"]["spans_removed"]
    assert rows(tmp_path / "first")["a.txt"]["id"] in span["reason"]


def test_what_is_removed_is_not_known_to_later_builds(folder: Folder, tmp_path: Path) -> None:
    folder({f"old/{n}.txt": CC0 + prose(n, 200) for n in range(6)})
    root = folder({})
    folder({"old/0-short.txt": CC0 + "few words of the removed", "old/1-short.txt": CC0 + "few words"})
    built(root / "old", tmp_path / "first", index={"save": True}, rejected_samples=2)
    assert (tmp_path / "first" / "duplicates").is_dir()
    done = remove(tmp_path / "first", matching=r"^0", date="2026-12-01")
    assert not (tmp_path / "first" / "duplicates").exists()
    (sample,) = map(json.loads, (tmp_path / "first" / "rejected.jsonl").read_text().splitlines())
    assert sample["path"] == "1-short.txt"
    assert any("duplicates" in line for line in done.lines())


def test_text_dropped_half_way_is_the_source_of_nothing(folder: Folder, tmp_path: Path) -> None:
    # `b` loses so much to `a` that it is dropped; what only `b` had must then survive in `c`.
    shared = [prose(f"s{n}", 60) for n in range(4)]
    own = prose("own", 44)  # under min_words alone
    texts = {
        "a": CC0 + "\n".join(shared),
        "b": "\n\n".join(shared[:2]) + "\n\n" + own,
        "c": prose("c", 100) + "\n" + own + "\n" + prose("c2", 100),
    }
    root = folder({"LICENSE": "CC0 1.0 Universal", **{f"{name}/{name}.txt": text for name, text in texts.items()}})
    sources = tuple({"name": name, "path": str(root / name), "licence": "CC0-1.0"} for name in texts)
    section = {"text": (), "source": sources, "paragraph_words": 20, "prose": {"min_words": 60}, "span_words": 40}
    for stages in ({}, {"line_words": 8, "substring_bytes": 150}):
        out = tmp_path / f"out{len(stages)}"
        built(root, out, **section, **stages)
        found = rows(out)
        assert found["b.txt"]["decision"] == "dropped"
        assert "too little is left" in found["b.txt"]["reason"] or "words are left" in found["b.txt"]["reason"]
        assert found["c.txt"]["spans_removed"] == []


def test_all_stages_at_once_do_the_same_in_worker_processes(folder: Folder, tmp_path: Path) -> None:
    line = "A " + " ".join(RARE[:14]) + " line.\n"
    texts = {f"{n}.txt": CC0 + prose(n, 90) + line + f"By {n}@example.org.\n" + prose(f"x{n}", 90) for n in range(12)}
    texts["copy.txt"] = texts["3.txt"] + "And more."
    root = folder(texts)
    evals = tmp_path / "evals.jsonl"
    evals.write_text(json.dumps({"question": prose("x5", 90)[:300]}) + "\n")
    model = train_classifier(
        {"keep": [prose(n) for n in range(20)], "reject": [" ".join(RARE) + str(n) for n in range(20)]}
    )
    model.save(tmp_path / "model.index")
    for runner in ("here", "processes"):
        built(
            root,
            tmp_path / runner,
            scale={"runner": runner, "workers": 2},
            line_words=12,
            substring_bytes=200,
            rejected_samples=2,
            language={"identify": True},
            classifier={"path": str(tmp_path / "model.index"), "threshold": 0.1},
            decontamination={"sets": (str(evals),)},
            index={"save": True},
        )
    assert hashes(tmp_path / "processes") == hashes(tmp_path / "here")
    stages = json.loads((tmp_path / "here" / "lineage.json").read_text())["figures"]["stages"]
    assert {"licence", "language", "quality", "classifier", "decontamination", "repeated lines"} <= set(stages)


def test_places_before_cuts_that_lie_around_each_other() -> None:
    text = "abcdefghijklmnop"
    cuts = [Span(4, 6, ""), Span(2, 9, ""), Span(12, 13, ""), Span(9, 10, "")]
    left = [c for i, c in enumerate(text) if not any(cut.start <= i < cut.end for cut in cuts)]
    assert [text[before_cuts(disjoint(cuts), i)] for i in range(len(left))] == left
