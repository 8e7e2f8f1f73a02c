"""The quickstart recipe that a command line asks for: a file, a number of minutes, single fields on top."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from overland.config import load_recipe, resolve_recipe
from overland.config.overrides import as_data
from overland.corpus.gather import open_sources, select_documents
from overland.errors import UsageError
from overland.pipeline.recipe import QuickstartRecipe, recipe_for_minutes

LEAST_MINUTES, MOST_MINUTES = 0.1, 24 * 60.0


def quickstart_recipe(
    path: Path | None, minutes: float | None, overrides: Sequence[str], *, continues: Path | None = None
) -> QuickstartRecipe:
    """The recipe of `path` (None: the defaults), scaled to `minutes`, with `overrides` on top.

    `continues` is the run folder of a run to be resumed: where nothing else is asked for, its own recipe is the one.
    """
    if continues is not None and path is None and minutes is None and not overrides:
        written = continues / "recipe.toml"
        if not written.is_file():
            raise UsageError(
                f"--resume: {continues} holds no run to continue (no recipe.toml); start it without --resume"
            )
        path = written
    recipe = load_recipe(QuickstartRecipe, path)
    if minutes is not None:
        if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
            raise UsageError(f"--minutes {minutes:g}: give {LEAST_MINUTES:g} to {MOST_MINUTES:g}")
        recipe = recipe_for_minutes(minutes, recipe)
    return resolve_recipe(QuickstartRecipe, as_data(recipe), overrides)


def check_text(recipe: QuickstartRecipe) -> None:
    """Read the user's own folders through the licence gate and the rules, before anything is written.

    Raises UsageError where one is missing, unreadable or holds nothing that can be used.
    """
    section = recipe.corpus.model_copy(update={"stdlib": False})
    if section.text:
        select_documents(section, open_sources(section), _Silent())


class _Silent:
    """A progress bar that shows nothing."""

    def advance(self, n: int = 1, **figures: object) -> None:
        """Nothing."""
