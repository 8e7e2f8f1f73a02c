"""`overland quantize DIR DST`."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json, print_pairs
from overland.cli.verbs import JSON, verb


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "quantize",
        "Write a model with MXFP4 experts.",
        "overland quantize runs/quickstart/model runs/mxfp4 --to mxfp4",
    )
    def quantize(
        source: Path = typer.Argument(..., metavar="DIR", help="A model folder."),
        target: Path = typer.Argument(..., metavar="DST", help="The folder to write: a new one."),
        to: str = typer.Option("mxfp4", "--to", help="The format of the routed experts: mxfp4."),
        rule: str = typer.Option("even", "--scale-rule", help="How a block's scale is chosen; see docs/transform.md."),
        as_json: bool = JSON,
    ) -> None:
        """Write a model with its routed experts in a smaller format; everything else keeps its type."""
        from overland.errors import UsageError
        from overland.transform import quantize_folder

        if to != "mxfp4":
            raise UsageError(f"--to {to}: is not a format Overland writes; valid: mxfp4")
        report = quantize_folder(source, target, rule)
        if as_json:
            print_json(report.to_dict())
            return
        print_pairs(
            {
                "written": target,
                "weights": f"{report.weights:,} of the routed experts, scale rule {report.rule}",
                "bytes": f"{report.bytes_before:,} before, {report.bytes_after:,} after",
                "error": f"{100 * report.relative_error:.2f}% of the weights' norm",
            }
        )
