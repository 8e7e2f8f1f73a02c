"""How every verb is declared: plain help that loads nothing, and examples that run as printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer

F = TypeVar("F", bound=Callable[..., Any])

JSON = typer.Option(False, "--json", help="Print the result as JSON.")
SET = typer.Option([], "--set", metavar="KEY=VALUE", help="Override a recipe field, e.g. sft.steps=200. Repeatable.")
NO_SANDBOX = typer.Option(
    False, "--no-sandbox", help="Run the model's commands unprotected, as you. Only where no sandbox works."
)
MODEL = typer.Option(..., "--model", metavar="DIR|URL", help="A model folder, or an API's base URL (http://.../v1).")
MODEL_NAME = typer.Option(None, "--name", help="The model's name at a URL that serves several.")
API = typer.Option("openai", "--api", help="What a URL speaks: openai or anthropic.")
API_KEY_ENV = typer.Option("OVERLAND_API_KEY", "--api-key-env", metavar="NAME", help="Variable with the URL's key.")
RESUME = typer.Option(False, "--resume", help="Continue the run in --out after a stop or a kill.")


def new_app(about: str) -> typer.Typer:
    """A group of verbs."""
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def verb(app: typer.Typer, name: str, about: str, *examples: str) -> Callable[[F], F]:
    """Declare a command: `about` is its line in the list of commands, its examples end its help (a test runs each)."""
    lines = "\n".join(f"  {example}" for example in examples)
    return app.command(name, short_help=about, epilog=f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}")
