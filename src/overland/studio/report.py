"""`write_report(run)`: one page that explains a run, readable without a network, a server or a script.

Nothing is measured here. The page shows what the run stored, says what is missing, and carries its own styles, charts
and script; a content security policy lets no other script run, whatever a model or a tool wrote.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from overland.runs import atomic_write
from overland.studio import sections
from overland.studio.markup import text
from overland.studio.stored import Stored, read_run
from overland.studio.trajectories import trajectories


def write_report(run: str | Path) -> Path:
    """Write RUN/report.html from the run's files and return its path. UsageError where RUN is no folder."""
    path = Path(run)
    page = report_page(read_run(path))
    target = path / "report.html"
    atomic_write(target, page)
    return target


def report_page(run: Stored) -> str:
    """The whole page as text."""
    colours = sections.colours_of(sections.domains_of(run))
    parts = [
        ("solved", "Held-out tasks solved", sections.held_out(run, colours)),
        ("learning", "Learning to write", sections.learning(run)),
        ("rl", "Learning to act", sections.reinforcement(run, colours)),
        ("effort", "What more effort buys", sections.efforts(run)),
        ("experts", "Expert load", sections.experts(run)),
        ("alarms", "Alarms", sections.alarms(run)),
        ("costs", "What it cost", sections.costs(run)),
        ("read", "Trajectories to read", trajectories(run, colours)),
    ]
    body = "".join(
        f'<section id="{id_}"><h2>{title}</h2>{content or _absent()}</section>' for id_, title, content in parts
    )
    links = "".join(f'<a href="#{id_}">{title}</a>' for id_, title, _ in parts)
    style, script = _asset("page.css"), _asset("page.js")
    name = text(run.path.resolve().name)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{name} · Overland</title><style>{style}</style></head><body>"
        f"<header><h1>{name}</h1>{sections.headline(run)}<nav>{links}</nav>{_missing(run)}</header>"
        f"<main>{body}{_sources(run)}</main><script>{script}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    """Nothing is fetched, and of all scripts only our own runs: it alone has this hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _missing(run: Stored) -> str:
    if not run.missing:
        return ""
    items = "".join(f"<li>{text(note)}</li>" for note in run.missing)
    return f'<div class="notice"><b>This page is incomplete:</b><ul>{items}</ul></div>'


def _absent() -> str:
    return '<p class="missing">The run stored nothing for this section.</p>'


def _sources(run: Stored) -> str:
    """The recipe and the manifest as they were written."""
    rows = ""
    for key, value in run.manifest.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        rows += f'<tr><th scope="row">{text(key)}</th><td class="words">{text(shown)}</td></tr>'
    manifest = f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else _absent()
    recipe = ""
    if run.recipe_text:
        recipe = f"<details><summary>recipe.toml as resolved</summary><pre>{text(run.recipe_text)}</pre></details>"
    return f'<section id="made" class="recipe"><h2>How it was made</h2>{manifest}{recipe}</section>'


def _asset(name: str) -> str:
    return (files("overland.studio") / name).read_text(encoding="utf-8")
