"""`overland model info | licence`."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json, print_table
from overland.cli.verbs import JSON, new_app, verb

app = new_app("What a model is made of, and what it owes.")


@verb(
    app,
    "info",
    "Count parameters and cache bytes.",
    "overland model info nano",
    "overland model info runs/quickstart/model --json",
)
def info(
    source: str = typer.Argument(..., metavar="PRESET|DIR", help="A preset's name or a model folder."),
    dtype: str = typer.Option("float32", "--dtype", help="Element type of the caches: float32, bfloat16 or float16."),
    as_json: bool = JSON,
) -> None:
    """Count parameters by component, the ones a token uses, and the cache, on the real modules without their memory."""
    from overland.model.info import describe

    found = describe(source, dtype)
    if as_json:
        print_json(found.to_json())
        return
    rows = [[name, f"{count:,}", f"{100 * count / found.parameters:.1f}%"] for name, count in found.components.items()]
    rows.append(["all", f"{found.parameters:,}", "100.0%"])
    print_table(rows, ["component", "parameters", "share"])
    print(f"\nactive for one token  {found.active:,} (all, less the routed experts that are not chosen)")
    print(f"layers                {found.layers}")
    print(f"cache                 {found.cache_bytes_per_token:,} bytes a token, in {dtype}")
    print(f"                      {found.cache_bytes_per_sequence:,} bytes a sequence, whatever its length")
    print(f"context               {found.context:,} tokens")


@verb(app, "licence", "What a model's licences oblige you to.", "overland model licence runs/quickstart/model")
def licence(
    folder: Path = typer.Argument(..., metavar="DIR", help="A model folder with lineage.json."),
    as_json: bool = JSON,
) -> None:
    """Say what the licences of the training text oblige a user of these weights to."""
    from overland.licences import duties

    found = duties(folder)
    if as_json:
        print_json(found.to_json())
    else:
        print("\n".join(found.lines()))
