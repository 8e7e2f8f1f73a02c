"""Scores side by side: a table for people (rich) and the same figures for machines (JSON)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from overland.evaluate.intervals import Paired
from overland.evaluate.scores import Score, Scores


def comparison(columns: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    """{column: {"all": ..., DOMAIN: ...}}, ready for JSON and in the shape of summary.json's held_out."""
    return {name: scores.held_out() for name, scores in columns.items()}


def comparison_table(columns: Mapping[str, Scores], title: str = "Held-out tasks solved, 95% intervals") -> Table:
    """A row a domain, a column an evaluation: 87% (84-89). Unjudged episodes are said, never counted."""
    table = Table(title=title, title_justify="left")
    table.add_column("domain")
    for name in columns:
        table.add_column(name, justify="right")
    by_domain = {name: scores.by_domain() for name, scores in columns.items()}
    domains = dict.fromkeys(d for rows in by_domain.values() for d in rows)
    for domain in domains:
        table.add_row(domain, *(rate(by_domain[name].get(domain)) for name in columns))
    table.add_section()
    table.add_row("all", *(rate(scores.overall) for scores in columns.values()), style="bold")
    return table


def efforts_table(scores: Scores, title: str = "By effort") -> Table:
    """A row an effort: success, sampled and thinking tokens, calls, and how episodes ended."""
    table = Table(title=title, title_justify="left")
    table.add_column("effort")
    for name in ("solved", "tokens", "thinking", "calls"):
        table.add_column(name, justify="right")
    table.add_column("stopped by")
    for effort, score in scores.by_effort().items():
        stops = ", ".join(f"{name or 'unknown'} {count}" for name, count in score.stops.items())
        table.add_row(effort, rate(score), _mean(score.tokens), _mean(score.thinking), _mean(score.calls), stops)
    return table


def rate(score: Score | None) -> str:
    """87% (84-89), with what was not judged; a dash where there is nothing."""
    if score is None or not score.n + score.unjudged:
        return "–"
    missing = f" +{score.unjudged} not judged" if score.unjudged else ""
    if not score.n:
        return f"–{missing}"
    return f"{100 * score.success:.0f}% ({100 * score.low95:.0f}–{100 * score.high95:.0f}){missing}"


def difference(paired: Paired) -> str:
    """+34 points (30 to 38), 41 gained, 3 lost of 300."""
    d = paired.difference
    return (
        f"{100 * d.estimate:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f}), "
        f"{paired.gained} gained and {paired.lost} lost of {paired.n}"
    )


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
