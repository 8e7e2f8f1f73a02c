"""Writes docs/recipes.md from the recipe classes:  python docs/generate_recipes.py"""

from __future__ import annotations

from pathlib import Path

from overland.config import Section, dump_toml
from overland.pipeline.recipe import QuickstartRecipe
from overland.pipeline.standalone import CorpusRecipe, PretrainRecipe, RLRecipe, SFTRecipe

PAGE = Path(__file__).with_name("recipes.md")
HEAD = """# Recipes

<!-- Written by docs/generate_recipes.py from the code. Do not edit. -->

A recipe is a TOML file. What it leaves out has the default below; `--set section.field=value` overrides one field;
`--dry-run` prints the whole recipe as resolved. `recipes/` has short ones to copy.

## Quickstart

Every field of `overland quickstart`, with its default and what it decides.

```toml
"""
ALONE: dict[str, tuple[type[Section], dict[str, str]]] = {
    "overland corpus build": (CorpusRecipe, {}),
    "overland train pretrain": (PretrainRecipe, {"corpus": "corpus/stdlib"}),
    "overland train sft": (SFTRecipe, {"model": "runs/pretrain/model"}),
    "overland rl train": (RLRecipe, {"model": "runs/sft/model"}),
}


def render() -> str:
    """The page."""
    parts = [HEAD, dump_toml(QuickstartRecipe()), "```\n\n## Single stages\n\n"]
    parts.append("Their tables have the fields shown above under the same name; the defaults may differ.\n")
    for verb, (recipe, required) in ALONE.items():
        parts.append(f"\n### `{verb} RECIPE`\n\n{(recipe.__doc__ or '').strip()}\n\n")
        parts.append("| Field | Default | What it decides |\n| --- | --- | --- |\n")
        for name, field in recipe.model_fields.items():
            if field.is_required():
                shown = f"required, e.g. `{required[name]}`"
            else:
                default = field.get_default(call_default_factory=True)
                shown = f"table `[{name}]`" if isinstance(default, Section) else f"`{_toml(default)}`"
            about = " ".join((field.description or "").split()).replace("|", "\\|")
            parts.append(f"| `{name}` | {shown} | {about} |\n")
    return "".join(parts)


def _toml(value: object) -> str:
    class One(Section):
        value: object

    return dump_toml(One(value=value)).split("value = ", 1)[1].strip()


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
