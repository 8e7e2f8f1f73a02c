"""`overland model info | import | export | licence`."""

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
    "overland model info runs/quickstart/model --context 4096",
)
def info(
    source: str = typer.Argument(..., metavar="PRESET|DIR", help="A preset's name or a model folder."),
    dtype: str = typer.Option("float32", "--dtype", help="Element type of the caches: float32, bfloat16 or float16."),
    context: int = typer.Option(None, "--context", help="Tokens to count a sequence's cache for; default: all it can."),
    as_json: bool = JSON,
) -> None:
    """Count parameters by component, the ones a token uses, and the cache, on the real modules without their memory."""
    from overland.model.info import describe

    found = describe(source, dtype, context)
    if as_json:
        print_json(found.to_json())
        return
    rows = [[name, f"{count:,}", f"{100 * count / found.parameters:.1f}%"] for name, count in found.components.items()]
    rows.append(["all" if found.vision is None else "all of the text part", f"{found.parameters:,}", "100.0%"])
    if found.vision is not None:
        rows += [[name, f"{count:,}", ""] for name, count in found.vision.items()]
        rows.append(["all of vision and projector", f"{sum(found.vision.values()):,}", ""])
    print_table(rows, ["component", "parameters", "share"])
    print(f"\nactive for one token  {found.active:,} (all, less the routed experts that are not chosen)")
    print(f"                      {found.active_without_input_embedding:,} without the input embedding")
    print(f"bytes on disk         {found.bytes_bf16:,} in bf16")
    if found.bytes_mxfp4 is not None:
        print(f"                      {found.bytes_mxfp4:,} with the routed experts in MXFP4")
    if found.release is not None:
        print(f"                      {found.release.bytes:,} as released, vision and padding included")
    if found.weight_files is not None:
        print(f"weights               {found.weight_files} file{'s' * (found.weight_files > 1)}, as the config asks")
    print(f"family                {found.family}")
    print(f"layers                {found.layers}")
    print(f"cache                 {found.cache_bytes_per_token:,} bytes a token, in {dtype}")
    print(f"                      {found.cache_bytes_per_sequence:,} bytes a sequence, whatever its length")
    print(f"                      {found.cache_bytes_at_context:,} bytes for a sequence of {found.at_context:,} tokens")
    print(f"context               {found.context:,} tokens")


FOLDER = typer.Argument(..., metavar="SRC", help="A model folder.")
TARGET = typer.Argument(..., metavar="DST", help="The folder to write: a new one.")
DTYPE = typer.Option("bfloat16", "--dtype", help="Type of the weights: bfloat16, float16 or float32.")


@verb(app, "import", "Read a released checkpoint.", "overland model import runs/quickstart/model runs/imported")
def import_(source: Path = FOLDER, target: Path = TARGET, dtype: str = DTYPE, as_json: bool = JSON) -> None:
    """Check a released checkpoint's config, names, shapes and values, and write it unpacked, to train or serve."""
    from overland.model.convert import convert_folder

    _written(convert_folder(source, target, dtype).family, target, as_json)


@verb(
    app,
    "export",
    "Write a model for other engines.",
    "overland model export runs/quickstart/model runs/exported",
    "overland model export runs/quickstart/model runs/for-llama-cpp --format gguf",
)
def export(
    source: Path = FOLDER,
    target: Path = TARGET,
    dtype: str = DTYPE,
    layout: str = typer.Option("huggingface", "--format", help="huggingface, or gguf for llama.cpp."),
    shard_gb: float = typer.Option(5.0, "--shard-gb", help="Size of a weight file at most, in 10^9 bytes."),
    as_json: bool = JSON,
) -> None:
    """Write a model in its family's released Hugging Face layout, in numbered files beyond --shard-gb; or as one
    model.gguf for llama.cpp.
    """
    from overland.errors import UsageError
    from overland.model.convert import convert_folder
    from overland.model.gguf import export_gguf

    if not 1e-9 <= shard_gb < 1e9:  # NaN too
        raise UsageError(f"--shard-gb {shard_gb}: valid: from 1e-9, a byte, to 1e9")
    if layout == "huggingface":
        _written(convert_folder(source, target, dtype, int(shard_gb * 1e9)).family, target, as_json)
    elif layout == "gguf":
        architecture, words = export_gguf(source, target, dtype)
        if as_json:
            print_json({"written": str(target), "architecture": architecture, "vocabulary": words})
        else:
            print(f"written {target}/model.gguf for llama.cpp's {architecture}, {words}")
    else:
        raise UsageError(f"format = {layout!r}; valid: huggingface, gguf")


def _written(family: str, target: Path, as_json: bool) -> None:
    if as_json:
        print_json({"written": str(target), "family": family})
    else:
        print(f"written {target} in the layout of {family}")


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
