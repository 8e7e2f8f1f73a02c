"""Recipes: typed sections, TOML files, overrides, and the resolved recipe written out with its reasons."""

from __future__ import annotations

from overland.config.overrides import apply_override, parse_override
from overland.config.recipe import load_recipe, resolve_recipe
from overland.config.section import RecipeError, Section
from overland.config.toml import dump_toml

__all__ = ["RecipeError", "Section", "apply_override", "dump_toml", "load_recipe", "parse_override", "resolve_recipe"]
