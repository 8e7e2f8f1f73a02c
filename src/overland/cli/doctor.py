"""`overland doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json, print_pairs, print_table
from overland.cli.verbs import JSON, verb


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(app, "doctor", "What this machine has, and what is missing.", "overland doctor", "overland doctor --json")
    def doctor(
        runs: Path = typer.Option(Path("."), "--runs", help="The folder whose disk is looked at."),
        as_json: bool = JSON,
    ) -> None:
        """Look at the machine: processor, memory, disk, torch, kernels, extras, sandboxes. Exits with 1 where something
        that the quickstart needs is missing.
        """
        from overland.cli.machine import look

        found = look(runs)
        if as_json:
            print_json(found.to_json())
        else:
            print_pairs(found.facts)
            print("\nextras")
            print_table([[e.name, e.state, e.what] for e in found.extras], ["extra", "installed", "for"])
            print("\nsandboxes (a backend is used only if it withstood every attack)")
            print_table(
                [[name, f"{state.held} of {state.tried}", state.verdict] for name, state in found.sandboxes.items()],
                ["backend", "withstood", "verdict"],
            )
            print()
            for line in found.missing or ["nothing is missing"]:
                print(f"- {line}")
        if found.blocking:
            raise typer.Exit(1)
