"""`overland train pretrain | sft`: one stage alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from overland.cli.output import print_json, print_pairs, resumes_with
from overland.cli.verbs import JSON, RESUME, SET, new_app, verb

if TYPE_CHECKING:
    from overland.config import Section

R = TypeVar("R", bound="Section")

app = new_app("Pretraining and supervised tuning, alone.")
RECIPE = typer.Argument(..., metavar="RECIPE", help="A recipe (TOML); recipes/ has one to copy.")
OUT = typer.Option(..., "--out", help="The run folder.")
DRY_RUN = typer.Option(False, "--dry-run", help="Print the resolved recipe; do nothing.")


@verb(
    app,
    "pretrain",
    "Pretrain a model on a corpus.",
    "overland train pretrain recipes/pretrain.toml --set pretrain.steps=10 --out runs/pretrain",
    "overland train pretrain recipes/pretrain.toml --out runs/pretrain --dry-run",
)
def pretrain(
    recipe: Path = RECIPE,
    out: Path = OUT,
    resume: bool = RESUME,
    changes: list[str] = SET,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Pretrain a model on a corpus that `overland corpus build` made. Leaves OUT/model."""
    from overland.pipeline.standalone import PretrainRecipe, pretrain

    _run(PretrainRecipe, pretrain, "train pretrain", recipe, out, resume, changes, dry_run, as_json)


@verb(
    app,
    "sft",
    "Tune a model on conversations.",
    "overland train sft recipes/sft.toml --set sft.steps=4 --out runs/sft",
    "overland train sft recipes/sft.toml --set data=talks.jsonl --set sft.steps=4 --out runs/talks",
)
def sft(
    recipe: Path = RECIPE,
    out: Path = OUT,
    resume: bool = RESUME,
    changes: list[str] = SET,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Tune a model on conversations: a JSONL of yours, or demonstrations that oracles make in the environments."""
    from overland.pipeline.standalone import SFTRecipe, sft

    _run(SFTRecipe, sft, "train sft", recipe, out, resume, changes, dry_run, as_json)


def _run(
    kind: type[R],
    job: Callable[..., dict[str, Any]],
    words: str,
    recipe: Path,
    out: Path,
    resume: bool,
    changes: list[str],
    dry_run: bool,
    as_json: bool,
) -> None:
    from overland.config import dump_toml, load_recipe

    asked = load_recipe(kind, recipe, changes)
    if dry_run:
        print(dump_toml(asked), end="")
        return
    parts = [str(recipe), *(part for change in changes for part in ("--set", change)), "--out", str(out), "--resume"]
    resumes_with(f"overland {words} {shlex.join(parts)}")
    figures = job(asked, out, resume=resume)
    if as_json:
        print_json(figures)
    else:
        print_pairs(figures)
