"""`overland rl train | show`."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from overland.cli.output import print_json, print_pairs, print_table, printable, resumes_with
from overland.cli.verbs import JSON, NO_SANDBOX, RESUME, SET, new_app, verb

app = new_app("Reinforcement learning, and its episodes.")


@verb(
    app,
    "train",
    "Train an agent in the environments.",
    "overland rl train recipes/rl.toml --set rl.steps=2 --out runs/rl",
    "overland rl train recipes/rl.toml --out runs/rl --dry-run",
)
def train(
    recipe: Path = typer.Argument(..., metavar="RECIPE", help="A recipe (TOML); recipes/rl.toml is one to copy."),
    out: Path = typer.Option(..., "--out", help="The run folder."),
    resume: bool = RESUME,
    changes: list[str] = SET,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the resolved recipe; do nothing."),
    no_sandbox: bool = NO_SANDBOX,
    as_json: bool = JSON,
) -> None:
    """Train an agent from a tuned model with GRPO, jointly over domains and efforts. Leaves OUT/model."""
    from overland.config import dump_toml, load_recipe
    from overland.pipeline.standalone import RLRecipe, rl

    asked = load_recipe(RLRecipe, recipe, changes)
    if dry_run:
        print(dump_toml(asked), end="")
        return
    parts = [str(recipe), *(part for change in changes for part in ("--set", change)), "--out", str(out), "--resume"]
    resumes_with(f"overland rl train {shlex.join(parts)}")
    figures = rl(asked, out, resume=resume, no_sandbox=no_sandbox)
    if as_json:
        print_json(figures)
    else:
        print_pairs(figures)


@verb(
    app,
    "show",
    "List and read a run's episodes.",
    "overland rl show runs/quickstart --domain finance --effort max --limit 5",
    "overland rl show runs/quickstart --failed --read",
)
def show(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder."),
    domain: str = typer.Option("", "--domain", help="Only this domain."),
    effort: str = typer.Option("", "--effort", help="Only this effort: low, high or max."),
    solved: bool = typer.Option(False, "--solved", help="Only solved episodes."),
    failed: bool = typer.Option(False, "--failed", help="Only episodes that failed."),
    least: float | None = typer.Option(None, "--min-reward", help="Only rewards from here up."),
    most: float | None = typer.Option(None, "--max-reward", help="Only rewards up to here."),
    files: str = typer.Option("", "--files", help="Only episode files whose name begins so, e.g. rl-step-00040."),
    limit: int = typer.Option(20, "--limit", min=1, help="Episodes at most, newest files first."),
    read: bool = typer.Option(False, "--read", help="Print the whole conversation of each."),
    as_json: bool = JSON,
) -> None:
    """List a run's episodes by domain, effort and reward; --read prints them whole."""
    from overland.pipeline.episodes import Wanted, conversation, find

    wanted = Wanted(domain, effort, True if solved else False if failed else None, least, most, files)
    found = find(run, wanted, limit)
    if as_json:
        print_json([{**item.figures(), **({"messages": conversation(item)} if read else {})} for item in found])
        return
    if not found:
        print("no episode matches")
        return
    if not read:
        rows = [[str(value) for value in item.figures().values()] for item in found]
        print_table(rows, list(found[0].figures()))
        return
    for item in found:
        print("── " + "  ".join(f"{name} {value}" for name, value in item.figures().items()))
        for line in conversation(item):
            print(printable(line))
        print()
