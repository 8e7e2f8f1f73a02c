"""The recipe section of evaluation."""

from __future__ import annotations

import pytest

from overland.config import load_recipe
from overland.errors import UsageError
from overland.evaluate import EvaluateSection


def test_the_defaults_measure_300_tasks_a_domain_at_every_effort() -> None:
    section = load_recipe(EvaluateSection, None, [])
    assert (section.tasks, section.efforts) == (300, ("low", "high", "max"))


@pytest.mark.parametrize("override", ["tasks=0", 'efforts=["huge"]', "efforts=[]", 'efforts=["low","low"]'])
def test_a_value_that_cannot_be_measured_is_named(override: str) -> None:
    with pytest.raises(UsageError, match=override.split("=")[0]):
        load_recipe(EvaluateSection, None, [override])
