"""Personal data: planted values are found, look-alikes are not, and code still parses."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.corpus import pii

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq0\n" * 12 + "-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mail ada.b+c@mail.example.co.uk now", "EMAIL"),
        ("call me at 555 0123 4567", "PHONE"),
        ("Phone:\n (020) 7946-0958", "PHONE"),
        ("reach us under +49 30 1234567.", "PHONE"),
        ("or 415-555-2671x12 instead", "PHONE"),
        ("host 93.184.216.34 answered", "IP"),
        ("key AKIAIOSFODNN7EXAMPLE", "KEY"),
        ("token ghp_" + "a1B2" * 9, "KEY"),
        ('password = "q8Zr2LwX9vTn4KpB"', "KEY"),
        (KEY, "KEY"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.SflKxwRJSMeKKF2QT4", "KEY"),
    ],
)
def test_planted_value_becomes_a_typed_placeholder(text: str, kind: str) -> None:
    out, counts = pii.replace(text, "prose")
    assert counts == Counter({kind.lower(): 1})
    assert f"<{kind}_1>" in out


@pytest.mark.parametrize(
    "text",
    [
        "a@b is no address, nor is @decorator or user@localhost",
        "127.0.0.1 192.168.0.1 10.0.0.1 203.0.113.7 999.1.1.1 1.2.3.4.5",
        "version 4.14.0.7 of the library",
        "order 123456789, ISBN 978-3-16-148410-0, 2026-12-01 10:30:00, 3.14159265358979",
        "password = 'correct_horse_battery'",
        "token = 'placeholder-placeholder'",
        "0.0.0.0 and 255.255.255.255",
    ],
)
def test_look_alikes_stay(text: str) -> None:
    assert pii.replace(text, "prose") == (text, Counter())


def test_digit_groups_in_code_are_no_phones() -> None:
    code = "phone_table = [(415, 555, 2671)]\nx = 415-555-2671  # call 555 0123 4567\n"
    assert pii.replace(code, "code", "python") == (code, Counter())


def test_same_value_has_one_number_a_document() -> None:
    out, counts = pii.replace("a@x.org b@x.org A@X.org", "prose")
    assert out == "<EMAIL_1> <EMAIL_2> <EMAIL_1>"
    assert counts == Counter({"email": 3})


def test_matrix_product_that_looks_like_an_address_is_left_alone() -> None:
    code = 'x = a@b.io\nauthor = "ada@example.org"  # bob@example.org\n'
    out, counts = pii.replace(code, "code", "python")
    assert out == 'x = a@b.io\nauthor = "<EMAIL_1>"  # <EMAIL_2>\n'
    assert counts == Counter({"email": 2})


@given(
    st.lists(
        st.sampled_from(
            [
                "x = a@b.io\n",
                '"ada@example.org"\n',
                "y = 8.8\n",
                "'8.8.8.8'\n",
                "# to a@b.io\n",
                "é = 'a@b.io'; z = w@b.io\n",
            ]
        ),
        max_size=8,
    )
)
def test_code_that_parsed_still_parses(lines: list[str]) -> None:
    code = "".join(lines)
    ast.parse(code)
    out, _ = pii.replace(code, "code", "python")
    ast.parse(out)
    assert '"ada@example.org"' not in out


@given(st.text(alphabet="ab@.+-:()0159 \n<>_\"'=", max_size=300))
def test_text_without_hits_comes_back_unchanged_and_hits_never_overlap(text: str) -> None:
    hits = pii.find(text, "prose")
    assert all(a.end <= b.start for a, b in pairwise(hits))
    out, counts = pii.replace(text, "prose")
    assert sum(counts.values()) == len(hits)
    assert (out == text) == (not hits)
