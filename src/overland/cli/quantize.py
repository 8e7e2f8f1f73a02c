"""`overland quantize DIR DST`."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json, print_pairs, print_table
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
        to: str = typer.Option("mxfp4", "--to", help="The format: mxfp4."),
        rule: str = typer.Option("even", "--scale-rule", help="How a block gets its scale: even, floor, ceil, search."),
        targets: list[str] = typer.Option(
            ["experts"], "--target", help="What to quantise: experts, or Linears by name or pattern; can be repeated."
        ),
        text: Path | None = typer.Option(
            None, "--text", help="Held-out text: a file, a folder or a corpus; default: the corpus of DIR's run."
        ),
        as_json: bool = JSON,
    ) -> None:
        """Write a model with its routed experts in a smaller format; everything else keeps its type. Reports the error
        of every tensor and what the loss on held-out text becomes.
        """
        from overland.errors import UsageError
        from overland.pipeline.quantized import quantize as run

        if to != "mxfp4":
            raise UsageError(f"--to {to}: is not a format Overland writes; valid: mxfp4")
        done = run(source, target, rule, targets, text)
        report = done.report
        if as_json:
            print_json(done.to_dict())
            return
        rows = [[t.name, f"{t.weights:,}", f"{100 * t.relative_error:.2f}%", f"{t.worst:.4g}"] for t in report.tensors]
        print_table(rows, ["tensor", "weights", "error of the norm", "worst weight"])
        pairs = {
            "written": target,
            "weights": f"{report.weights:,}, scale rule {report.rule}",
            "bytes": f"{report.bytes_before:,} before, {report.bytes_after:,} after",
            "error": f"{100 * report.relative_error:.2f}% of the weights' norm",
            "held out": "not measured: no text; give some with --text",
        }
        if done.before is not None and done.after is not None:
            change = f"{done.before:.4f} bits a byte before, {done.after:.4f} after ({done.after - done.before:+.4f})"
            pairs["held out"] = f"{change}, on {done.text}"
        print_pairs(pairs)
