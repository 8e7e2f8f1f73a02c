"""The program: its verbs, and how a failure becomes one line and an exit code (1 failed, 2 wrong use, 130 Ctrl-C)."""

from __future__ import annotations

import os
import sys

import typer

from overland.cli import agent, corpus, doctor, evaluate, model, plan, quantize, quickstart, rl, serve, studio, train
from overland.cli.output import fail, resume_line
from overland.cli.verbs import new_app
from overland.errors import OverlandError

STOPPED = 130

app = new_app("From raw text to a served, tool-using agent, on one machine.")


@app.callback(invoke_without_command=True, epilog="\b\nExample:\n  overland quickstart --minutes 2")
def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of a failure. May stand anywhere."),
) -> None:
    """From raw text to a served, tool-using agent, on one machine."""
    if version:
        from overland import __version__

        print(f"overland {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


for room in (quickstart, agent, plan, quantize, serve, evaluate, studio, doctor):
    room.add_to(app)
for name, group in (("corpus", corpus), ("model", model), ("train", train), ("rl", rl)):
    app.add_typer(group.app, name=name)


def main(arguments: list[str] | None = None) -> None:
    """Run one command line and leave the process with its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    plain = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:plain]
    arguments = [word for at, word in enumerate(arguments) if word != "--debug" or at > plain]
    # Measured: two OpenMP threads on two busy cores are many times slower than one. Whoever knows better sets it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        code = app(arguments, prog_name="overland", standalone_mode=False)
        sys.stdout.flush()
        if code == STOPPED:
            raise KeyboardInterrupt  # the parser makes an exit code of it
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return fail(f"stopped. {resume_line()}", STOPPED)
    except OverlandError as error:
        if debug:
            raise
        return fail(str(error), error.exit_code)
    except BrokenPipeError:  # `overland ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        wrong_argument = getattr(error, "format_message", None)
        if wrong_argument is not None:  # the argument parser's own errors
            return fail(_with_command(error, wrong_argument()), 2)
        if debug:
            raise
        if isinstance(error, OSError) and error.strerror:
            return fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1)
        name = type(error).__name__
        return fail(f"{name}: {error} (an error in Overland itself; --debug shows where)", 1)


def _with_command(error: Exception, message: str) -> str:
    """The parser's message, after the command that it speaks of, with the way to its help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "overland"
    if not message or message.lstrip().startswith("Usage:"):  # a group without a verb: its help is the message
        return message or (context.get_help() if context is not None else "")
    return f"{path}: {' '.join(message.split())} (see {path} --help)"
