"""What a constraint is to the engine: an automaton over token ids that says which may come next.

Grammars are compiled elsewhere (overland.serve.grammar); the engine never sees text.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """One request's automaton. It is advanced with every accepted token, forced ones included."""

    def allowed(self, vocab_size: int) -> Tensor | None:
        """Which ids may come next, [V] bool; None where anything may."""
        ...

    def advance(self, token: int) -> None:
        """Take one accepted token."""
        ...

    def copy(self) -> Constraint:
        """An automaton in the same state that advances on its own: for forks."""
        ...
