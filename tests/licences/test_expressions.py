"""SPDX expressions, held against `license-expression`'s own SPDX parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from license_expression import get_spdx_licensing

from overland.licences import BadExpression, keys_of, normalise

REFERENCE = get_spdx_licensing()
KEYS = st.sampled_from(["MIT", "CC-BY-4.0", "CC0-1.0", "GPL-2.0-or-later", "Apache-2.0", "PSF-2.0"])
EXPRESSIONS = st.recursive(
    KEYS, lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
)


@given(EXPRESSIONS)
def test_normalised_expression_is_equivalent_to_what_was_written(expression: str) -> None:
    assert REFERENCE.is_equivalent(normalise(expression), expression)
    assert set(keys_of(expression)) == set(REFERENCE.license_keys(expression))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("cc0-1.0 or gpl-2.0+", "CC0-1.0 OR GPL-2.0-or-later"),
        ("MIT AND (CC-BY-4.0 OR CC0-1.0)", "MIT AND (CC-BY-4.0 OR CC0-1.0)"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"),
        ("LicenseRef-house OR MIT", "LicenseRef-house OR MIT"),
    ],
)
def test_spelling_is_canonical(written: str, meant: str) -> None:
    assert normalise(written) == meant


def test_local_reference_is_never_read_as_a_listed_licence() -> None:
    assert str(REFERENCE.parse("LicenseRef-Apache").key) == "Apache-2.0"  # what the library would do
    assert keys_of("LicenseRef-Apache") == ("LicenseRef-Apache",)


@pytest.mark.parametrize(
    "expression",
    ["", "((", "MIT AND", "MIT Apache-2.0", "NOASSERTION", "NONE", "MIT WITH Apache-2.0", "Classpath-exception-2.0"],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(BadExpression):
        normalise(expression)


def test_unknown_licence_names_its_neighbour() -> None:
    with pytest.raises(BadExpression, match=r"Did you mean CC-BY-4\.0"):
        normalise("CC-BY-4.1")
