"""Policies as files, the many spellings of a licence, and what weights and text together oblige a user to."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from license_expression import get_spdx_licensing

from overland.errors import UsageError
from overland.licences import (
    BillLine,
    bill_of_materials,
    copyright_holders,
    decide,
    duties,
    from_statement,
    profile,
    recognise_licence,
    restriction_in,
    spdx_copyrights,
)

TODAY = datetime.date(2026, 6, 1)
POLICY = """
about = "what counsel agreed to"
[[rule]]
licence = "CC-BY-*"
uses = ["train", "redistribute", "commercial"]
[[rule]]
licence = "CC-BY-NC-4.0"
uses = ["train"]
[[rule]]
licence = "MIT"
uses = ["train", "redistribute"]
attribution = false
[[authorisation]]
licence = "LicenseRef-acme"
who = "A. Counsel"
reason = "contract 17"
until = 2026-12-31
sources = ["acme-*"]
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    (tmp_path / "policy.toml").write_text(POLICY)
    return str(tmp_path / "policy.toml")


def test_policy_says_which_licence_may_be_used_for_what(policy: str) -> None:
    every = frozenset(("train", "redistribute", "commercial"))
    assert decide("CC-BY-4.0", policy, uses=every).allowed
    assert decide("CC-BY-SA-3.0", policy, uses=every).allowed
    assert decide("MIT", policy).allowed
    assert not decide("CC-BY-NC-SA-4.0", policy).allowed  # a pattern never reaches NC or ND
    assert not decide("CC-BY-ND-4.0", policy).allowed
    assert decide("CC-BY-NC-4.0", policy).allowed
    refused = decide("CC-BY-NC-4.0", policy, uses=every)
    assert refused.reason.endswith("does not grant the use 'commercial, redistribute'")
    assert decide("CC-BY-NC-4.0 OR CC-BY-4.0", policy, uses=every).licence_used == "CC-BY-4.0"
    assert not decide("GPL-3.0-only", policy).allowed
    assert not decide(None, policy).allowed


def test_authorisations_of_a_policy_hold_for_their_sources_until_their_day(policy: str) -> None:
    assert decide("LicenseRef-acme", policy, source="acme-wiki", today=TODAY).allowed
    assert not decide("LicenseRef-acme", policy, source="other", today=TODAY).allowed
    late = decide("LicenseRef-acme", policy, source="acme-wiki", today=datetime.date(2027, 1, 1))
    assert "ended on 2026-12-31" in late.reason


def test_policy_overrides_what_is_owed(policy: str) -> None:
    bill = bill_of_materials([BillLine("MIT", "s", 1, 1, "Ada")], profile(policy).rule)
    assert bill["MIT"]["attribution_owed"] == []
    assert not bill["MIT"]["commercial_use"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "not valid TOML"),
        ("", "allows nothing"),
        ("[[rules]]\nlicence = 'MIT'", "rules is not a field"),
        ("[[rule]]\nlicense = 'MIT'", r"rule\[0\]\.license is not a field"),
        ("[[rule]]\nlicence = 'MIT'\nuses = ['sell']", r"choose from train, redistribute, commercial"),
        ("[[rule]]\nlicence = ''", "must be an SPDX key"),
        (
            "[[authorisation]]\nlicence = 'MIT'\nwho = 'me'\nreason = ' '",
            r"authorisation\[0\]\.reason must not be empty",
        ),
        ("[[authorisation]]\nlicence = 'MIT'\nwho = 'me'\nreason = 'x'\nuntil = 'May'", "must be a date"),
        ("[rule]\nlicence = 'MIT'", r"must be written as \[\[rule\]\]"),
    ],
)
def test_wrong_policy_names_the_field(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        profile(str(tmp_path / "p.toml"))
    with pytest.raises(UsageError, match="cannot be read"):
        profile(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        ("GPL-2+ or CC-BY-SA-3.0", "GPL-2.0-or-later OR CC-BY-SA-3.0"),
        ("LGPL-2.1+ and Expat", "LGPL-2.1-or-later AND MIT"),
        ("https://creativecommons.org/licenses/by-nc-sa/3.0/", "CC-BY-NC-SA-3.0"),
        ("http://creativecommons.org/licenses/by-sa/3.0/de/deed.en", "CC-BY-SA-3.0-DE"),
        ("http://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("CC BY-SA 4.0", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution-NonCommercial-NoDerivatives 4.0 International", "CC-BY-NC-ND-4.0"),
        ("cc-by-4.0", "CC-BY-4.0"),
        ("Public Domain", "LicenseRef-public-domain"),
        ("License :: OSI Approved :: MIT License", "MIT"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("GNU FDL 1.2", "GFDL-1.2-only"),
        ("CC-BY", None),
        ("BSD", None),
        ("other", None),
        ("see LICENSE", None),
        ("MIT and BSD", None),
        ("A and B or C", None),
        ("", None),
    ],
)
def test_statements_become_spdx_only_where_they_are_surely_known(statement: str, key: str | None) -> None:
    assert from_statement(statement) == key


CC = st.tuples(
    st.sampled_from(["by", "by-sa", "by-nc", "by-nd", "by-nc-sa", "by-nc-nd"]),
    st.sampled_from(["2.0", "2.5", "3.0", "4.0"]),
)


@given(CC)
def test_every_creative_commons_licence_is_itself_in_all_spellings(pair: tuple[str, str]) -> None:
    kind, version = pair
    key = f"CC-{kind.upper()}-{version}"
    assert key in get_spdx_licensing().known_symbols
    words = {"by": "Attribution", "nc": "NonCommercial", "nd": "NoDerivatives", "sa": "ShareAlike"}
    name = "-".join(words[part] for part in kind.split("-"))
    for text in (key, key.lower(), f"CC {kind.upper()} {version}", f"Creative Commons {name} {version}",
                 f"https://creativecommons.org/licenses/{kind}/{version}/legalcode"):  # fmt: skip
        assert from_statement(text) == key, text
    assert recognise_licence(f"Creative Commons {name} {version} International Public License") == key
    free = "nc" not in kind and "nd" not in kind
    assert decide(key, "cc").allowed == free


@pytest.mark.parametrize("name", ["GPL-2", "GPL-3", "LGPL-2.1", "MPL-2.0", "Apache-2.0", "CC0-1.0"])
def test_whole_texts_of_free_licences_hold_no_restriction(name: str) -> None:
    path = Path("/usr/share/common-licenses") / name
    if not path.exists():
        pytest.skip(f"this machine has no {path}")
    found = recognise_licence(path.read_text(errors="replace"))
    assert found is not None
    assert found.startswith(name.split("-")[0])


def test_restrictions_take_a_licence_away() -> None:
    mit = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and"
    assert recognise_licence(mit) == "MIT"
    assert recognise_licence(f"For non-commercial use only. {mit}") is None
    assert restriction_in("This text is for research purposes only.") == "for research purposes only"
    assert restriction_in("Attribution-NonCommercial: non-commercial use", "CC-BY-NC-4.0") is None
    assert restriction_in("A commercial success.") is None


def test_spdx_copyright_lines_name_people_without_years_and_addresses() -> None:
    text = (
        "# SPDX-FileCopyrightText: 2019-2024 Jane Roe <jane@roe.org>\n<!-- SPDX-FileCopyrightText: © Acme, Inc. -->\n"
    )
    assert spdx_copyrights(text + "x" * 5000 + "SPDX-FileCopyrightText: 2020 Too Late") == "Jane Roe; Acme, Inc"
    assert spdx_copyrights("Copyright 2020 Somebody") == ""


def test_copyright_holders_are_people_and_not_phrases() -> None:
    text = "MIT License\n\nCopyright (c) 2020-2024 Ada Byron\nCopyright 2019 The Gnat Project. All rights reserved.\n"
    assert copyright_holders(text + "Copyright notice and this permission notice") == "Ada Byron; The Gnat Project"
    assert copyright_holders("Copyright [yyyy] [name of copyright owner]") == ""


def test_weights_and_text_are_read_together(tmp_path: Path) -> None:
    bill = bill_of_materials(
        [BillLine("CC-BY-SA-4.0", "wiki", 10, 10, "Ada"), BillLine("CC-BY-NC-4.0", "essays", 5, 5, "Bob")]
    )
    word = {"licence": "*", "who": "the user", "reason": "mine", "until": None}
    (tmp_path / "lineage.json").write_text(json.dumps({"licences": bill, "authorisations": [word]}))
    (tmp_path / "LICENSE").write_text("Apache License, Version 2.0")
    together = duties(tmp_path).together()
    assert "for the weights (Apache-2.0): name the authors" in together
    assert any(
        "conflict: the weights' licence Apache-2.0 permits commercial use, CC-BY-NC-4.0 does not" in s for s in together
    )
    assert any("outputs that repeat CC-BY-SA-4.0 text stay under CC-BY-SA-4.0" in line for line in together)
    assert any("(2 in all)" in line for line in together)
    assert any("rests on the word of the user" in line for line in together)
    (tmp_path / "LICENSE").unlink()
    assert "not stated" in duties(tmp_path).together()[0]
    assert duties(tmp_path).to_json()["together"] == duties(tmp_path).together()
