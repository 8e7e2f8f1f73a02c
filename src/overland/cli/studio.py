"""`overland studio RUN`: the report of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json
from overland.cli.verbs import JSON, verb


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "studio",
        "Write the report of a run.",
        "overland studio runs/quickstart",
        "overland studio runs/quickstart --open",
    )
    def studio(
        run: Path = typer.Argument(..., metavar="RUN", help="A run folder."),
        show: bool = typer.Option(False, "--open", help="Open it in a browser."),
        as_json: bool = JSON,
    ) -> None:
        """Write RUN/report.html from what the run stored: curves, scores, expert load, episodes to read."""
        from overland.studio import write_report

        path = write_report(run)
        if as_json:
            print_json({"report": str(path)})
        else:
            print(f"report     {path}")
        if show:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())
