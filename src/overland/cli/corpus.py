"""`overland corpus build | inspect | remove | classifier`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from overland.cli.output import print_json, print_pairs, printable
from overland.cli.verbs import JSON, SET, new_app, verb

SPANS = 12  # cuts that are listed for a person
AROUND = 1600  # characters of a text that are shown from the token on; a quarter as many before it

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
    text: list[str] = typer.Option(
        [], "--text", metavar="DIR|URL", help="A folder with text, or a URL; the standard library is then left out."
    ),
    licences: str | None = typer.Option(None, "--licences", help="Licence profile: cc or none."),
    changes: list[str] = SET,
    as_json: bool = JSON,
) -> None:
    """Build a corpus. Nothing is written before everything that can be refused was checked."""
    from overland import corpus
    from overland.config import load_recipe
    from overland.pipeline.standalone import CorpusRecipe

    given = [f"corpus.text={text!r}", "corpus.stdlib=false"] if text else []
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
    "overland corpus inspect corpus/stdlib --document argparse.py",
)
def inspect(
    folder: Path = typer.Argument(..., help="A corpus folder."),
    token: int = typer.Option(0, "--token", help="Number of a token in the split."),
    split: str = typer.Option("train", "--split", help="train or heldout."),
    document: str | None = typer.Option(
        None, "--document", metavar="ID|PATH", help="A document instead of a token; also one that was dropped."
    ),
    key_env: str | None = typer.Option(
        None,
        "--key-env",
        metavar="NAME",
        help="Variable with the vault's passphrase: show what placeholders stand for.",
    ),
    as_json: bool = JSON,
) -> None:
    """Show the document that a token came from: source, licence and its evidence, every decision taken over it."""
    from overland import corpus

    if document is None:
        found = [corpus.inspect(folder, token, split, key_env=key_env)]
    else:
        found = corpus.inspect_document(folder, document, key_env=key_env)
    if as_json:
        print_json(found if document else found[0])
        return
    for number, row in enumerate(found):
        print("\n" if number else "", end="")
        _print_document(row)


def _print_document(row: dict[str, Any]) -> None:
    text, before = row.pop("text", ""), row.pop("before", 0)
    history, spans = row.pop("history"), row.pop("spans_removed")
    row["pii_replaced"] = ", ".join(f"{count} {kind}" for kind, count in row["pii_replaced"].items())
    print_pairs({name: printable(str(value)) for name, value in row.items() if value not in (None, "", {}, [])})
    print("\ndecisions")
    for step in history:
        rule = " ".join(step[name] for name in ("rule", "value") if name in step)
        bound = "used" if step["stage"] == "licence" else "threshold"
        limit = f" ({bound} {step['threshold']})" if "threshold" in step else ""
        detail = f": {step['detail']}" if "detail" in step and step["detail"] != row.get("reason") else ""
        print(f"  {step['stage']:<20} {step['outcome']:<8} {printable(rule + limit + detail)}")
    if spans:
        print(
            f"\ncut out, in characters of the text that was read ({sum(s['end'] - s['start'] for s in spans)} in all)"
        )
        for span in spans[:SPANS]:
            print(f"  {span['start']:>8}..{span['end']:<8} {printable(span['reason'])}")
        if len(spans) > SPANS:
            print(f"  and {len(spans) - SPANS} more (--json shows all)")
    if text:
        start, end = max(0, before - AROUND // 4), before + AROUND
        print(f"\n{'…' if start else ''}{printable(text[start:end])}{'…' if end < len(text) else ''}")


@verb(
    app,
    "remove",
    "Take documents out of a corpus, with proof.",
    "overland corpus remove corpus/stdlib --matching '^[a-e]' --who 'M. Author' --reason withdrawn",
)
def remove(
    folder: Path = typer.Argument(..., help="A corpus folder."),
    source: str | None = typer.Option(None, "--source", help="A source's name, or a shell pattern over names."),
    ids: list[str] = typer.Option([], "--id", help="A document's id. Repeatable."),
    matching: str | None = typer.Option(
        None, "--matching", metavar="REGEX", help="Documents whose path, address or author matches."
    ),
    who: str = typer.Option("", "--who", help="Who asks for it; kept in lineage.json."),
    reason: str = typer.Option("", "--reason", help="Why; kept in lineage.json and in documents.parquet."),
    as_json: bool = JSON,
) -> None:
    """Rewrite the shards concerned, read them again to prove that the text is gone, and record the request."""
    from overland import corpus

    done = corpus.remove(folder, source=source, ids=ids, matching=matching, who=who, reason=reason)
    if as_json:
        print_json(done.to_dict())
    else:
        print("\n".join(done.lines()))


@verb(
    app,
    "classifier",
    "Train a quality classifier on examples.",
    "overland corpus classifier --keep good --reject bad --out prose.index",
)
def classifier(
    keep: list[str] = typer.Option(..., "--keep", metavar="DIR", help="Texts as they should be. Repeatable."),
    reject: list[str] = typer.Option(..., "--reject", metavar="DIR", help="Texts as they should not be. Repeatable."),
    out: Path = typer.Option(..., "--out", help="The file to write; a recipe names it as corpus.classifier.path."),
    seed: int = typer.Option(0, "--seed", help="Draws the fifth that is held out, and the order of training."),
    as_json: bool = JSON,
) -> None:
    """Train on four fifths of the examples and measure on the rest. The figures are kept with the classifier."""
    from dataclasses import asdict

    from overland.corpus.examples import classifier_from

    model = classifier_from(keep, reject, out, seed)
    assert model.evaluation
    if as_json:
        print_json({"path": str(out), **asdict(model.evaluation)})
    else:
        print(f"classifier {out}")
        print("\n".join(model.evaluation.lines()))
