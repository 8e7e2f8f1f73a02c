"""`overland corpus build | inspect`."""

from __future__ import annotations

from pathlib import Path

import typer

from overland.cli.output import print_json, print_pairs, printable
from overland.cli.verbs import JSON, SET, new_app, verb

app = new_app("Raw text to licensed token shards.")


@verb(
    app,
    "build",
    "Build a corpus from text.",
    "overland corpus build --text notes --set corpus.text_licence=CC-BY-4.0 --out corpus/notes",
    "overland corpus build recipes/corpus.toml --out corpus/stdlib",
)
def build(
    recipe: Path | None = typer.Argument(
        None, help="A recipe (TOML) with a [corpus] table. Without one: the defaults."
    ),
    out: Path = typer.Option(..., "--out", help="The corpus folder to write."),
    text: list[Path] = typer.Option(
        [], "--text", metavar="DIR", help="A folder with text; the standard library is then left out."
    ),
    licences: str | None = typer.Option(None, "--licences", help="Licence profile: cc or none."),
    changes: list[str] = SET,
    as_json: bool = JSON,
) -> None:
    """Build a corpus. Nothing is written before everything that can be refused was checked."""
    from overland import corpus
    from overland.config import load_recipe
    from overland.pipeline.standalone import CorpusRecipe

    given = [f"corpus.text={[str(folder) for folder in text]!r}", "corpus.stdlib=false"] if text else []
    given += [f"corpus.licences={licences}"] if licences else []
    section = load_recipe(CorpusRecipe, recipe, [*given, *changes]).corpus
    report = corpus.build(section, out)
    if as_json:
        print_json(report.to_dict())
    else:
        print(f"corpus     {report.path}")
        print("\n".join(report.lines()))


@verb(
    app,
    "inspect",
    "Show the document that a token came from.",
    "overland corpus inspect runs/quickstart/corpus --token 1000",
)
def inspect(
    folder: Path = typer.Argument(..., help="A corpus folder."),
    token: int = typer.Option(0, "--token", help="Number of a token in the split."),
    split: str = typer.Option("train", "--split", help="train or heldout."),
    as_json: bool = JSON,
) -> None:
    """Show the document that a token came from: source, licence and its evidence, what was cut and replaced."""
    from overland import corpus

    row = corpus.inspect(folder, token, split)
    if as_json:
        print_json(row)
        return
    text = row.pop("text")
    print_pairs({name: value for name, value in row.items() if value not in (None, "", {}, [])})
    print(f"\n{printable(text[:2000])}{'…' if len(text) > 2000 else ''}")
