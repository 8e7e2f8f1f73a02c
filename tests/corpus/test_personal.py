"""Personal data at the level of places: the compiled pass against its expressions, check digits against published
examples, strings and comments against `tokenize`, recall on the labelled set of presidio-research (MIT)."""

from __future__ import annotations

import glob
import io
import json
import os
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import CorpusSection, build, inspect, read_documents_table
from overland.corpus import personal_kinds as kinds
from overland.corpus.compiled import Packed, available
from overland.corpus.personal_scan import CODE, LITERAL, literals, scan, scan_reference
from overland.corpus.personal_vault import Vault, reveal
from overland.corpus.pii import find, find_all, replace_all
from overland.errors import OverlandError, UsageError

from .conftest import SMALL, prose, quiet

Folder = Callable[[dict[str, str | bytes]], Path]
DATA = Path(os.environ.get("OVERLAND_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
LABELLED = DATA / "presidio_synth_v2.json"
STRUCTURED = {
    "EMAIL_ADDRESS": "EMAIL", "PHONE_NUMBER": "PHONE", "IP_ADDRESS": "IP", "CREDIT_CARD": "CARD", "IBAN_CODE": "IBAN",
    "US_SSN": "ID",
}  # fmt: skip
PIECES = st.sampled_from(
    [
        *(
            "a",
            "B",
            "7",
            "0",
            "12",
            "123",
            "1234",
            "2001",
            "fe80",
            ".",
            "-",
            ":",
            "::",
            "@",
            "/",
            "(",
            ")",
            "_",
            '"',
            "'",
        ),
        *("x", "GB", "56", "AKIA", "ghp_", "sk-", "xoxb", "eyJ", "-----", "glpat-", "é", "io", "org", " ", "\n", "= "),
        *("BEGIN ", "abcdefgh12345", "415-555-2671", "078-05-1120", "8.8.8.8", "4111111111111111", "QQ123456C"),
        "12345678Z",
    ]
)


@pytest.mark.skipif(not available(), reason="no C compiler on this machine: there is no compiled pass to compare")
@settings(max_examples=200)
@given(st.lists(st.lists(PIECES, max_size=24).map("".join), min_size=1, max_size=3), st.booleans())
def test_compiled_pass_reports_what_the_expressions_report(texts: list[str], code: bool) -> None:
    expected = [(at, *place) for at, text in enumerate(texts) for place in scan_reference(text.encode(), code)]
    assert [tuple(place) for place in scan(Packed.of(texts), [code] * len(texts))] == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("card 4111 1111 1111 1111 expires", "CARD"),
        ("Amex 3782-822463-10005", "CARD"),
        ("account DE89 3704 0044 0532 0130 00.", "IBAN"),
        ("to GB29NWBK60161331926819 today", "IBAN"),
        ("IBAN: NL91 ABNA 0417 1643 00 of hers", "IBAN"),
        ("SSN 078-05-1120", "ID"),
        ("his NI number is QQ123456C", None),  # a prefix that was never given out
        ("national insurance AB123456C", "ID"),
        ("DNI 12345678Z", "ID"),
        ("CPF 529.982.247-25", "ID"),
        ("codice fiscale RSSMRA85T10A562S", "ID"),
        ("Aadhaar 2341 2341 2346", "ID"),
        ("BSN 111222333", "ID"),
        ("numéro de sécurité sociale 255081416802538", "ID"),
        ("Steuer-ID 86095742719", "ID"),
        ("reach it at 2606:4700:4700::1111 now", "IP"),
        ("order 4111111111111112", None),
        ("GB29NWBK60161331926818 has another check digit", None),
        ("CPF 529.982.247-26", None),
        ("std::cafe::d and 10:30:00 and ::1 and fe80::1 and x[1::2] + x[2::] + x[3::4]", None),
        ("git@github.com:owner/name.git", None),
    ],
)
def test_numbers_are_somebodys_by_their_check_digits_and_names(text: str, kind: str | None) -> None:
    found = find(text, "prose")
    assert [hit.kind for hit in found] == ([kind] if kind else [])


@pytest.mark.parametrize("digits", ["4539578763621486", "79927398713", "0"])
def test_luhn_knows_its_own_and_every_single_change(digits: str) -> None:
    assert kinds.luhn(digits.encode())
    for at, c in enumerate(digits):
        changed = digits[:at] + str((int(c) + 1) % 10) + digits[at + 1 :]
        assert not kinds.luhn(changed.encode())


@pytest.mark.skipif(not LABELLED.exists(), reason="the labelled set lies beside the repository and is not here")
def test_structured_kinds_are_found_on_the_labelled_set() -> None:
    rows = json.loads(LABELLED.read_text())
    found = find_all([row["full_text"] for row in rows], ["prose"] * len(rows))
    total, hit, typed = Counter[str](), Counter[str](), Counter[str]()
    false = 0
    for row, hits in zip(rows, found, strict=True):
        for span in row["spans"]:
            if kind := STRUCTURED.get(span["entity_type"]):
                total[kind] += 1
                over = [h for h in hits if h.start <= span["start_position"] and span["end_position"] <= h.end]
                hit[kind] += bool(over)
                typed[kind] += any(h.kind == kind for h in over)
        for h in hits:
            false += not any(s["start_position"] < h.end and h.start < s["end_position"] for s in row["spans"])
    assert total.total() == 328
    assert hit.total() / total.total() >= 0.98
    assert typed.total() / total.total() >= 0.98
    assert false <= 3


def test_code_of_the_standard_library_has_few_hits_beside_addresses() -> None:
    files = sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py"))
    texts = [Path(file).read_text(encoding="utf-8", errors="replace") for file in files]
    done = replace_all(texts, ["code"] * len(texts), ["python"] * len(texts))
    counts = sum((one.counts for one in done), Counter[str]())
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    assert counts.total() - counts["email"] < 5 * megabytes  # an address in a comment is somebody's
    assert counts["email"] > 5
    for one in done:
        assert all(value.count("@") == 1 for name, value in one.values.items() if name.startswith("<EMAIL"))


@pytest.mark.skipif(not available(), reason="no C compiler on this machine: literals are then not told apart")
@pytest.mark.parametrize("name", ["textwrap", "tokenize", "argparse", "json/decoder", "inspect"])
def test_strings_and_comments_are_those_of_tokenize(name: str) -> None:
    path = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    inside = bytearray(len(text))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            a, b = starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
            quote = (
                0 if token.type == tokenize.COMMENT else min(token.string.find(q) for q in "'\"" if q in token.string)
            )
            inside[a + quote : b] = b"\1" * (b - a - quote)
    raw = text.encode()
    assert len(raw) == len(text)
    found = literals(raw, range(len(raw)), "python")
    assert found is not None
    for at, kind in enumerate(found):
        assert (kind != CODE) == bool(inside[at]), (name, text[at - 30 : at + 10])


def test_f_strings_are_not_taken_for_plain_ones() -> None:
    code = "x = f'{a@b.io}' # ada@example.org\ny = 'bob@example.org'\n"
    (done,) = replace_all([code], ["code"], ["python"])
    assert "ada@" not in done.text
    assert "bob@" not in done.text
    compile(done.text, "x", "exec")
    if available():
        assert literals(b"x = 'a' # b\n", [5, 10], "python") == [LITERAL, LITERAL]


def test_other_languages_comments_and_strings() -> None:
    if not available():
        pytest.skip("no C compiler on this machine: literals are then not told apart")
    source = b"int a = 'x'; /* b */ char *s = \"c\"; // d\n# e\n"
    places = [source.index(c) for c in (b"a", b"x", b"b", b"s", b'c"', b"d\n", b"e")]
    assert literals(source, sorted(places), "c") is not None
    by_place = dict(zip(sorted(places), literals(source, sorted(places), "c") or [], strict=True))
    assert [by_place[place] for place in places] == [0, 1, 1, 0, 1, 1, 0]


def test_a_placeholder_that_the_text_already_holds_is_not_used_again() -> None:
    (done,) = replace_all(["<EMAIL_1> wrote to ada@example.org"], ["prose"], [""])
    assert done.text == "<EMAIL_1> wrote to <EMAIL_2>"
    assert done.values == {"<EMAIL_2>": "ada@example.org"}


def test_offsets_are_characters_also_behind_others_than_ascii() -> None:
    text = "größe 🙂 ada@example.org und 8.8.4.4 als DNS 93.184.216.34"
    assert [text[hit.start : hit.end] for hit in find(text, "prose")] == ["ada@example.org", "93.184.216.34"]


def test_vault_opens_with_its_key_alone_and_holds_no_value(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="the vault needs the extra 'corpus'")
    text = "SPDX-License-Identifier: CC0-1.0\n\n" + prose("v") + "Write to ada@example.org.\n"
    root = folder({"a.txt": text, **{f"{n}.txt": "SPDX-License-Identifier: CC0-1.0\n" + prose(n) for n in range(3)}})
    section = CorpusSection(text=(str(root),), pii_key_env="VAULT_KEY", **SMALL)
    with pytest.raises(UsageError, match="set VAULT_KEY"):
        build(section, tmp_path / "out", progress=quiet)
    monkeypatch.setenv("VAULT_KEY", "correct horse battery")
    build(section, tmp_path / "out", progress=quiet)
    (row,) = [r for r in read_documents_table(tmp_path / "out").to_pylist() if r["path"] == "a.txt"]
    assert reveal(tmp_path / "out", row["id"], "VAULT_KEY") == {"<EMAIL_1>": "ada@example.org"}
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            assert b"ada@example" not in file.read_bytes()
            assert b"correct horse" not in file.read_bytes()
    sealed = Vault("correct horse battery").seal("one", {"a": "b"})
    with pytest.raises(OverlandError, match="does not fit"):
        Vault("correct horse batterz").open("one", sealed)
    with pytest.raises(OverlandError, match="does not fit"):
        Vault("correct horse battery").open("two", sealed)
    assert inspect(tmp_path / "out", 0)["source"] == "text:texts"
