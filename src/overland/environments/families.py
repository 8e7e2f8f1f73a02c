"""Families of prompts, composed of parts that people wrote."""

from __future__ import annotations

from collections.abc import Sequence


def compose(openings: Sequence[str], links: Sequence[str], closings: Sequence[str]) -> tuple[str, ...]:
    """Every opening with every link and closing, around the fields {s} (the start) and {p} (the path)."""
    return tuple(
        f"{opening} {{s}} {link} {{p}} {closing}" for opening in openings for link in links for closing in closings
    )
