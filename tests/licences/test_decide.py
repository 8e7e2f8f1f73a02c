"""The gate: truth tables worked out by hand, and Boolean evaluation over random expressions."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from license_expression import get_spdx_licensing

from overland.errors import UsageError
from overland.licences import Authorisation, BadExpression, decide, keys_of

REFERENCE = get_spdx_licensing()
PSF = Authorisation("PSF-2.0", "the owner", "the licence permits it", sources=("python-*",))
TODAY = datetime.date(2026, 6, 1)


@pytest.mark.parametrize(
    ("expression", "used"),
    [
        ("CC0-1.0", "CC0-1.0"),
        ("CC-PDDC", "CC-PDDC"),
        ("CC-PDM-1.0", "CC-PDM-1.0"),
        ("CC-BY-3.0-IGO", "CC-BY-3.0-IGO"),
        ("CC-BY-SA-2.1-JP", "CC-BY-SA-2.1-JP"),
        ("MIT OR CC-BY-4.0", "CC-BY-4.0"),
        ("CC-BY-4.0 AND CC0-1.0", "CC-BY-4.0 AND CC0-1.0"),
        ("GPL-2.0-or-later OR (CC-BY-SA-3.0 AND CC0-1.0)", "CC-BY-SA-3.0 AND CC0-1.0"),
        ("PSF-2.0 AND (MIT OR CC0-1.0)", "PSF-2.0 AND CC0-1.0"),
        ("PSF-2.0 OR CC0-1.0", "CC0-1.0"),
    ],
)
def test_allowed_expression_names_the_arm_relied_upon(expression: str, used: str) -> None:
    decision = decide(expression, "cc", [PSF], source="python-stdlib", today=TODAY)
    assert (decision.allowed, decision.licence_used) == (True, used)


@pytest.mark.parametrize(
    "expression",
    [
        "MIT",
        "CC-BY-4.0 AND MIT",
        "CC-BY-NC-4.0",
        "CC-BY-ND-4.0",
        "CC-BY-NC-SA-3.0",
        "CC-SA-1.0",
        "LicenseRef-mine",
        "Fuu",
    ],
)
def test_what_the_profile_does_not_name_is_denied_with_a_reason(expression: str) -> None:
    decision = decide(expression, "cc", today=TODAY)
    assert not decision.allowed
    assert not decision.licence_used
    assert expression.split(" AND ")[-1] in decision.reason


def test_unknown_licence_is_denied() -> None:
    assert decide(None, "cc") == decide(None, "none")
    assert decide(None).reason == "unknown licence"


def test_authorisation_holds_for_its_sources_only() -> None:
    assert decide("PSF-2.0", "cc", [PSF], source="python-stdlib-3.11", today=TODAY).authorisation == PSF
    assert not decide("PSF-2.0", "cc", [PSF], source="text:notes", today=TODAY).allowed


def test_authorisation_ends_after_its_last_day() -> None:
    word = Authorisation("MIT", "the owner", "agreed in writing", until=TODAY)
    assert decide("MIT", "cc", [word], today=TODAY).allowed
    late = decide("MIT", "cc", [word], today=TODAY + datetime.timedelta(days=1))
    assert not late.allowed
    assert "ended on 2026-06-01" in late.reason


def test_authorisation_of_a_licence_covers_it_with_an_exception() -> None:
    word = Authorisation("GPL-2.0-only", "the owner", "agreed")
    assert decide("GPL-2.0-only WITH Classpath-exception-2.0", "cc", [word]).allowed
    exact = Authorisation("GPL-2.0-only WITH Classpath-exception-2.0", "the owner", "agreed")
    assert not decide("GPL-2.0-only", "cc", [exact]).allowed


def test_blanket_authorisation_covers_what_is_unknown_in_its_source() -> None:
    word = Authorisation("*", "the user", "I wrote these", sources=("text:*",))
    assert decide(None, "cc", [word], source="text:notes").licence_used == "LicenseRef-authorised"
    assert decide("MIT", "cc", [word], source="text:notes").licence_used == "MIT"
    assert not decide(None, "cc", [word], source="other").allowed


def test_authorisation_without_a_reason_is_refused() -> None:
    with pytest.raises(BadExpression, match="reason"):
        Authorisation("MIT", "someone", " ")


def test_unknown_profile_lists_the_profiles() -> None:
    with pytest.raises(UsageError, match="cc, none"):
        decide("MIT", "anything")


KEYS = st.sampled_from(["MIT", "CC-BY-4.0", "CC0-1.0", "PSF-2.0", "Apache-2.0"])
EXPRESSIONS = st.recursive(
    KEYS, lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
)


@given(EXPRESSIONS)
def test_decision_is_the_boolean_value_of_the_expression(expression: str) -> None:
    good = {"CC-BY-4.0", "CC0-1.0", "PSF-2.0"}
    reference = REFERENCE.parse(expression)
    truth = reference.subs({symbol: _truth(str(symbol.key) in good) for symbol in reference.symbols}, simplify=True)
    decision = decide(expression, "cc", [Authorisation("PSF-2.0", "a", "b")])
    assert decision.allowed == (truth == _truth(True))
    if decision.allowed:
        assert set(keys_of(decision.licence_used)) <= good


def _truth(value: bool) -> object:
    return REFERENCE.TRUE if value else REFERENCE.FALSE
