"""The failures a person is meant to read: one line that names the field, the value and the fix."""

from __future__ import annotations


class OverlandError(Exception):
    """Something failed; the command line prints the message without a traceback and exits 1."""

    exit_code = 1


class UsageError(OverlandError):
    """An argument or a recipe is wrong; nothing was started and nothing was written. Exits 2."""

    exit_code = 2


class BrokenFileError(OverlandError):
    """A file on disk is truncated, corrupted or not what its index says. The message names it."""
