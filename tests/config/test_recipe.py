"""Recipes: what is read back, what is refused, and what the refusal says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from overland.config import RecipeError, Section, dump_toml, load_recipe
from overland.errors import UsageError


class GRPO(Section):
    type: Literal["grpo"] = "grpo"
    clip_high: float = 0.28
    """Upper clip."""


class Keep(Section):
    type: Literal["keep"] = "keep"
    best: int = 3


class Domain(Section):
    name: str = "terminal"
    algorithm: Annotated[GRPO | Keep, Field(discriminator="type")] = GRPO()


class Effort(Section):
    tau: float = 1.0


class SFTSection(Section):
    """Supervised tuning."""

    steps: int = Field(3, ge=1)
    """Optimiser steps."""
    lr: float = 1e-3


class Recipe(Section):
    """A recipe for the tests."""

    seed: int = 0
    title: str = "a"
    limit: dict[str, int | None] = Field({"low": 3, "max": None})
    sft: SFTSection = SFTSection(steps=9)
    domain: list[Domain] = Field([Domain(), Domain(name="sql", algorithm=Keep())])
    effort: dict[str, Effort] = Field({"low": Effort(), "max": Effort(tau=3)})


def message(tmp_path: Path, text: str = "", overrides: list[str] | None = None) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_recipe(Recipe, path, overrides or [])
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_unknown_key_names_its_nearest_neighbour(tmp_path: Path) -> None:
    assert message(tmp_path, "[sft]\nstpes = 1") == "recipe.toml: sft.stpes is not a field of SFT. Did you mean steps?"


def test_unknown_key_inside_a_list_and_a_union_is_located(tmp_path: Path) -> None:
    text = "[[domain]]\nalgorithm = { type = 'grpo', clip_hihg = 0.3 }"
    expected = "recipe.toml: domain[0].algorithm.clip_hihg is not a field of GRPO. Did you mean clip_high?"
    assert message(tmp_path, text) == expected


def test_unknown_key_with_no_neighbour_lists_the_fields(tmp_path: Path) -> None:
    assert "Its fields are seed, title, limit, sft, domain, effort." in message(tmp_path, "zzzz = 1")


def test_bad_value_names_field_value_and_what_is_valid(tmp_path: Path) -> None:
    said = message(tmp_path, "[sft]\nsteps = 0")
    assert said.startswith("recipe.toml: sft.steps = 0: should be greater than or equal to 1.")
    assert "Optimiser steps" in said


def test_an_override_is_named_as_the_source_of_its_own_mistake(tmp_path: Path) -> None:
    said = message(tmp_path, "", ["sft.stpes=3"])
    assert said.startswith("--set sft.stpes=3: sft.stpes is not a field of SFT. Did you mean steps?")


@pytest.mark.parametrize(
    "override, part",
    [
        ("seed", "is not an override"),
        ("sft.=3", "is not an override"),
        ("domain.4.name=x", "domain has 2 entries"),
        ("sft.steps.x=1", "sft.steps is a single value"),
        ("domain.0.algorithm.type=foo", "'grpo', 'keep'"),
        ("sft.lr=nan", "finite"),
    ],
)
def test_a_wrong_override_says_why(tmp_path: Path, override: str, part: str) -> None:
    assert part in message(tmp_path, "", [override])


@pytest.mark.parametrize("text, part", [("a = = 1", "line 1"), ("\xff", "not valid TOML")])
def test_a_file_that_is_no_toml_says_where(tmp_path: Path, text: str, part: str) -> None:
    assert part in message(tmp_path, text)


def test_a_missing_file_names_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_text("")
    with pytest.raises(RecipeError, match=r"Did you mean .*quickstart\.toml\?"):
        load_recipe(Recipe, tmp_path / "quickstrat.toml")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="UTF-8"):
        load_recipe(Recipe, tmp_path / "r.toml")


def test_overrides_reach_defaults_without_losing_their_siblings() -> None:
    recipe = load_recipe(
        Recipe,
        None,
        ["domain.0.algorithm.clip_high=0.5", "domain[1].name=web", "effort.low.tau=2", "sft.lr=1", "limit.low=none"],
    )
    assert recipe.domain == [Domain(algorithm=GRPO(clip_high=0.5)), Domain(name="web", algorithm=Keep())]
    assert recipe.effort == {"low": Effort(tau=2), "max": Effort(tau=3)}
    assert recipe.sft == SFTSection(steps=9, lr=1.0)
    assert recipe.limit == {"low": None, "max": None}


def test_a_table_in_the_file_keeps_the_other_choices_of_a_default_section(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[sft]\nlr = 0.5")
    assert load_recipe(Recipe, tmp_path / "r.toml").sft == SFTSection(steps=9, lr=0.5)


def test_the_dump_holds_every_default_and_its_documentation() -> None:
    text = dump_toml(Recipe())
    assert "# Optimiser steps.\nsteps = 9" in text
    assert '[[domain]]\nname = "sql"' in text
    assert "# Upper clip." in text


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda s: s != "none")


@given(
    title=names,
    lr=st.floats(allow_nan=False, allow_infinity=False),
    limit=st.dictionaries(names, st.none() | st.integers(-(2**40), 2**40), max_size=3),
    effort=st.dictionaries(names, st.builds(Effort), max_size=3),
    domain=st.lists(st.builds(Domain, name=names, algorithm=st.builds(GRPO) | st.builds(Keep)), max_size=3),
)
def test_a_dumped_recipe_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    title: str,
    lr: float,
    limit: dict[str, int | None],
    effort: dict[str, Effort],
    domain: list[Domain],
) -> None:
    recipe = Recipe(title=title, sft=SFTSection(lr=lr), limit=limit, effort=effort, domain=domain)
    path = tmp_path_factory.getbasetemp() / "dump.toml"
    path.write_bytes(dump_toml(recipe).encode())
    assert load_recipe(Recipe, path) == recipe
