"""Whose fault a missing reward is.

`infra`: the machine (a sandbox, a disk, an endpoint, a deadline): no reward, no part in the baseline.
`data`: the task itself (its world cannot be built, its prompt does not fit): the task is quarantined.
`policy`: everything that the policy did, malformed calls and timeouts of its own commands included: scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Failure = Literal["", "infra", "data"]
DATA = ("UsageError", "BrokenFileError", "KeyError", "ValueError", "TypeError", "IndexError", "AssertionError")
"""Errors that a task's own data raises: the same task fails the same way again."""


def failure_of(record: Mapping[str, Any]) -> Failure:
    """What failed in an episode in wire form; "" where the machinery worked."""
    kinds = {str(e.get("type", "")) if isinstance(e, Mapping) else str(e) for e in _errors(record)}
    if kinds:
        return "data" if kinds <= set(DATA) else "infra"
    return "infra" if record.get("is_timeout") else ""


def error_messages(record: Mapping[str, Any]) -> list[str]:
    """What the machinery said."""
    return [str(e.get("message", e)) if isinstance(e, Mapping) else str(e) for e in _errors(record)]


def _errors(record: Mapping[str, Any]) -> list[Any]:
    return [*(record.get("errors") or ()), *(e for t in record.get("traces") or () for e in t.get("errors") or ())]
