"""`overland serve DIR`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import typer

from overland.cli.verbs import SET, verb


def add_to(app: typer.Typer) -> None:
    """Declare the verb."""

    @verb(
        app,
        "serve",
        "Serve a model over HTTP.",
        "overland serve runs/quickstart/model --port 8000",
        "overland serve runs/quickstart/model --port 0 --set default_effort=high",
        "overland serve runs/quickstart/model --engine vllm --print",
    )
    def serve(
        folder: Path = typer.Argument(..., metavar="DIR", help="A model folder."),
        host: str | None = typer.Option(None, "--host", help="Address to listen on. Default: 127.0.0.1, this machine."),
        port: int | None = typer.Option(None, "--port", help="Port; 0 takes a free one. Default: 8000."),
        api_key_env: str | None = typer.Option(
            None, "--api-key-env", metavar="NAME", help="Variable that holds the API key. Default: OVERLAND_API_KEY."
        ),
        name: str = typer.Option(
            "", "--name", help="What clients call the model. Default: the folder's, or of RUN/model the run's."
        ),
        max_batch: int = typer.Option(64, "--max-batch", min=1, help="Requests that are generated together."),
        engine: str = typer.Option("overland", "--engine", help="With --print: overland, vllm, sglang or tokenspeed."),
        print_: bool = typer.Option(False, "--print", help="Print how that engine is started on DIR; start nothing."),
        dtype: str | None = typer.Option(None, "--dtype", help="float32 or bfloat16. Default: float32."),
        packed: bool | None = typer.Option(None, "--packed", help="Keep a quantised folder's MXFP4 matrices packed."),
        changes: list[str] = SET,
    ) -> None:
        """Serve a model over OpenAI's and Anthropic's API, with /metrics and /health.

        The API key is read from an environment variable, never from the command line, where others could see it.
        Ctrl-C lets running requests finish.
        """
        from overland.config import load_recipe
        from overland.pipeline.opening import launch_line, serve_folder
        from overland.serve import ServeSection

        given = {"host": host, "port": port, "api_key_env": api_key_env, "dtype": dtype}
        overrides = [f"{field}={value}" for field, value in given.items() if value is not None]
        overrides += [f"packed={str(packed).lower()}"] if packed is not None else []
        settings = load_recipe(ServeSection, None, [*overrides, *changes])
        if print_ or engine != "overland":
            line, notes = launch_line(folder, settings, name, engine, only=print_)
            print(line)
            for note in notes:
                print(note, file=sys.stderr)
            return
        serve_folder(folder, settings, name, max_batch, announce=functools.partial(print, flush=True))
