"""`overland VERB`: each command parses its arguments, calls one function of a room, and prints."""

from overland.cli.main import main

__all__ = ["main"]
