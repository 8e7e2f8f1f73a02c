"""Jobs that span stages: the quickstart, and single stages from recipes of their own."""

from overland.pipeline.plan import dry_run
from overland.pipeline.quickstart import quickstart
from overland.pipeline.recipe import QuickstartRecipe, recipe_for_minutes

__all__ = ["QuickstartRecipe", "dry_run", "quickstart", "recipe_for_minutes"]
