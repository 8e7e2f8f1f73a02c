"""`overland quickstart`: raw text to a served agent on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from overland.cli.output import print_json, resumes_with
from overland.cli.verbs import JSON, NO_SANDBOX, SET, verb


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "quickstart",
        "Raw text to a served agent on this machine.",
        "overland quickstart",
        "overland quickstart --minutes 2 --out runs/short",
        "overland quickstart --set rl.steps=80 --dry-run",
    )
    def quickstart(
        recipe: Path | None = typer.Argument(None, help="A recipe (TOML). Without one: the defaults."),
        out: Path = typer.Option(Path("runs/quickstart"), "--out", help="The run folder."),
        minutes: float | None = typer.Option(None, "--minutes", help="Scale the work to about so many minutes."),
        seed: int | None = typer.Option(None, "--seed", help="Seed of everything that is drawn."),
        resume: bool = typer.Option(False, "--resume", help="Continue the run in --out after a stop or a kill."),
        text: list[str] = typer.Option(
            [], "--text", metavar="DIR|URL", help="A folder with text of your own, or a URL. Repeatable."
        ),
        text_licence: str | None = typer.Option(None, "--text-licence", help="SPDX licence of files that state none."),
        changes: list[str] = SET,
        dry_run: bool = typer.Option(
            False, "--dry-run", help="Print the resolved recipe, tokens and time; do nothing."
        ),
        no_sandbox: bool = NO_SANDBOX,
        as_json: bool = JSON,
    ) -> None:
        """Raw text to a served agent on this machine: corpus, pretraining, SFT, RL, MXFP4, serving, report.

        Ends with a table of what was reached; RUN/report.html shows the curves and whole episodes, offline. Ctrl-C and
        even kill -9 lose at most the steps since the last checkpoint: --resume continues.
        """
        from overland import pipeline
        from overland.pipeline.asked import check_text, quickstart_recipe
        from overland.pipeline.summary import summary_table

        given = [f"corpus.text={text!r}"] if text else []
        given += [f"corpus.text_licence={text_licence}"] if text_licence else []
        given += [f"seed={seed}"] if seed is not None else []
        asked = quickstart_recipe(recipe, minutes, [*given, *changes], continues=out if resume else None)
        check_text(asked)
        if dry_run:
            print(pipeline.dry_run(asked), end="")
            return
        resumes_with(shlex.join(["overland", "quickstart", "--out", str(out), "--resume"]))
        summary = pipeline.quickstart(asked, out, resume=resume, no_sandbox=no_sandbox)
        if as_json:
            print_json(summary)
        else:
            print(f"\n{summary_table(summary)}\n\nreport  {out / 'report.html'}\nmodel   {out / 'model'}")
