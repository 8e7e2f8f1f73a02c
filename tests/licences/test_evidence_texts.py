"""Licence texts and SPDX lines: real title lines of the licences, and traps that look like a freer licence."""

from __future__ import annotations

import pathlib

import pytest

from overland.licences import BillLine, bill_of_materials, facts, recognise_licence, spdx_lines


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Creative Commons Attribution 4.0 International Public License", "CC-BY-4.0"),
        ("Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution-NonCommercial-ShareAlike 3.0 Unported", "CC-BY-NC-SA-3.0"),
        ("Attribution-NonCommercial 4.0 International", "CC-BY-NC-4.0"),
        ("Attribution-NoDerivatives 4.0 International", "CC-BY-ND-4.0"),
        ("Creative Commons Legal Code\n\nCC0 1.0 Universal", "CC0-1.0"),
        ("see https://creativecommons.org/licenses/by/4.0/", "CC-BY-4.0"),
        ("GNU GENERAL PUBLIC LICENSE\n Version 2, June 1991", "GPL-2.0-only"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\n Version 3, 19 November 2007", "AGPL-3.0-only"),
        ("GNU LESSER GENERAL PUBLIC LICENSE Version 2.1", "LGPL-2.1-only"),
        ("SPDX-License-Identifier: MIT OR CC0-1.0\n", "MIT OR CC0-1.0"),
        ("All rights reserved.", None),
        ("", None),
    ],
)
def test_licence_text_is_recognised_by_its_title(text: str, key: str | None) -> None:
    assert recognise_licence(text) == key


def test_whole_licence_text_that_names_others_below_is_still_itself() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    assert recognise_licence((root / "LICENSE").read_text()) == "Apache-2.0"


def test_two_licences_in_one_text_are_no_evidence() -> None:
    assert recognise_licence("Text: Attribution 4.0 International. Code: Apache License Version 2.0") is None


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("# SPDX-License-Identifier: CC0-1.0\n", ("CC0-1.0",)),
        ("/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */", ("GPL-2.0 WITH Linux-syscall-note",)),
        ("<!-- SPDX-License-Identifier: CC-BY-4.0 -->", ("CC-BY-4.0",)),
        ("SPDX-License-Identifier: MIT\nSPDX-License-Identifier: CC0-1.0", ("MIT", "CC0-1.0")),
        ("x" * 5000 + "SPDX-License-Identifier: MIT", ()),
    ],
)
def test_spdx_lines_are_read_from_the_header(header: str, found: tuple[str, ...]) -> None:
    assert spdx_lines(header) == found


def test_bill_counts_by_licence_and_names_whom_to_attribute() -> None:
    bill = bill_of_materials(
        [BillLine("CC0-1.0", "a", 10, 20), BillLine("CC-BY-SA-4.0", "b", 1, 2), BillLine("CC-BY-SA-4.0", "c", 3, 4)]
    )
    assert (bill["CC0-1.0"]["documents"], bill["CC0-1.0"]["attribution_owed"]) == (1, [])
    shared = bill["CC-BY-SA-4.0"]
    assert (shared["documents"], shared["tokens"], shared["bytes"]) == (2, 4, 6)
    assert shared["attribution_owed"] == ["b", "c"]
    assert shared["share_alike"]


def test_unlisted_licence_owes_attribution_and_notice() -> None:
    assert facts("LicenseRef-x").attribution
    assert facts("LicenseRef-x").notice
    assert not facts("CC0-1.0").attribution
