"""`overland rl train | show | audit`."""

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
    "overland rl show runs/quickstart --suspected any",
    "overland rl show runs/quickstart --limit 1 --page runs/quickstart/episode.html",
    "overland rl show runs/quickstart --compare 0,3 --page runs/quickstart/steps.html",
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
    level: int | None = typer.Option(None, "--level", help="Only this level."),
    stop: str = typer.Option("", "--stop", help="Only episodes that ended so: answered, turns, budget, length, ..."),
    suspected: str = typer.Option("", "--suspected", help="Only what a monitor suspects: its name, or any."),
    id: str = typer.Option("", "--id", help="Only episodes whose id begins so."),
    read: bool = typer.Option(False, "--read", help="Print the whole conversation of each."),
    page: Path | None = typer.Option(
        None, "--page", help="Write the first episode, token by token, as this HTML page."
    ),
    compare: str = typer.Option("", "--compare", help="Two steps, e.g. 0,40: write them side by side to --page."),
    as_json: bool = JSON,
) -> None:
    """List a run's episodes; --read prints them, --page writes one with its tokens coloured, --compare two steps."""
    from overland.pipeline.episodes import Wanted, compare_page, conversation, find, trajectory_page

    if compare:
        written = compare_page(run, compare, page)
        print_json({"page": str(written)}) if as_json else print(f"page       {written}")
        return
    success = True if solved else False if failed else None
    found = find(run, Wanted(domain, effort, success, least, most, files, stop, level, suspected, id), limit)
    if page is not None:
        written = trajectory_page(run, found, page)
        print_json({"page": str(written)}) if as_json else print(f"page       {written}")
        return
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


@verb(
    app,
    "audit",
    "Check a finished run's rewards again, offline.",
    "overland rl audit runs/quickstart",
    "overland rl audit runs/quickstart --files rl-step-00003 --sample 10 --no-sandbox",
)
def audit(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder."),
    files: str = typer.Option("rl-", "--files", help="Only episode files whose name begins so."),
    limit: int = typer.Option(0, "--limit", min=0, help="Episodes at most, newest files first; 0: all."),
    sample: int = typer.Option(12, "--sample", min=0, help="Episodes to draw for a person to label."),
    seed: int = typer.Option(0, "--seed", help="Decides which are drawn."),
    no_sandbox: bool = NO_SANDBOX,
    as_json: bool = JSON,
) -> None:
    """Rebuild each task, replay its calls in a fresh world, score it again, look for cheating, draw a sample to label.

    Leaves RUN/audit.json, RUN/label.jsonl (fill in "label") and proposals in RUN/quarantine.json.
    """
    from overland.pipeline.audit import audit_run

    report = audit_run(run, files=files, limit=limit, sample=sample, seed=seed, no_sandbox=no_sandbox)
    if as_json:
        print_json(report)
        return
    figures = {k: v for k, v in report.items() if not isinstance(v, dict | list)}
    print_pairs(figures)
    for kind, count in report["suspicions"].items():
        print(f"  {kind:<20} {count}")
    for task, why in report["quarantine"].items():
        print(f"quarantine proposed: {task}: {why}")
    if report["sample"]:
        keys = ["verdict", "domain", "reward", "again", "suspected", "answer", "id"]
        print_table([[printable(str(row[key])) for key in keys] for row in report["sample"]], keys)
        print(f"label them in {run / 'label.jsonl'}; read one with: overland rl show {run} --id ID --read")
