"""One trajectory as a page: every token, coloured by mask, by log-probability or by advantage, as the reader chooses.

No script: three radio buttons and style sheets do it. Everything written by a model goes through `text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from overland.chat import Tokenizer
from overland.evaluate.outcomes import outcome
from overland.runs import atomic_write
from overland.studio.markup import figure, text
from overland.studio.trajectories import longest_branch, token_words

Json = Mapping[str, Any]
MODES = (("mask", "mask"), ("logp", "log-probability"), ("adv", "advantage"))
UNLIKELY = 6.0
"""Nats at which a token is coloured in full: it had one chance in four hundred."""


def write_trajectory(record: Json, tokenizer: Tokenizer | None, path: Path) -> Path:
    """Write the page of one episode (wire form) to `path`."""
    return _write(path, f"{outcome(record).task or outcome(record).id}", modes() + one(record, tokenizer), "")


def write_page(path: Path, title: str, body: str) -> Path:
    """A page of the same look, for several trajectories."""
    return _write(path, title, modes() + body, "wide")


def _write(path: Path, title: str, body: str, kind: str) -> Path:
    sheet = "".join((files("overland.studio") / f).read_text(encoding="utf-8") for f in ("page.css", "trajectory.css"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)} · Overland</title><style>{sheet}</style></head>"
        f'<body class="{kind}"><header><h1>{text(title)}</h1></header><main>{body}</main></body></html>\n'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, page)
    return path


def modes() -> str:
    """The choice of colours and what they mean."""
    buttons = "".join(
        f'<label><input type="radio" name="mode" id="m-{id}"{" checked" if id == "mask" else ""}> {label}</label>'
        for id, label in MODES
    )
    return (
        f'<div class="modes">Colour tokens by {buttons}'
        '<p class="key key-mask"><span class="tok sampled">sampled</span> by the model, learned from &nbsp; '
        '<span class="tok forced">forced</span> put there by a budget &nbsp; '
        '<span class="tok">read</span> not learned from</p>'
        '<p class="key key-logp"><span class="tok sampled" style="--u:0">certain</span> &nbsp; '
        '<span class="tok sampled" style="--u:.5">one in twenty</span> &nbsp; '
        f'<span class="tok sampled" style="--u:1">one in four hundred</span> or less, when sampled</p>'
        '<p class="key key-adv"><span class="tok sampled up" style="--a:1">made likelier</span> &nbsp; '
        '<span class="tok sampled down" style="--a:1">made less likely</span> &nbsp; '
        "by the update; stronger is more, against the largest of this episode</p></div>"
    )


def one(record: Json, tokenizer: Tokenizer | None) -> str:
    """Facts, scores and tokens of one episode."""
    o = outcome(record)
    trace: Json = next((t for t in record.get("traces") or () if isinstance(t, dict)), {})
    info = trace.get("info") if isinstance(trace.get("info"), dict) else {}
    training: Json = (info or {}).get("training") or {}
    state = {True: "solved", False: "failed", None: "unjudged"}[o.success]
    hacks = training.get("hacks") or []
    facts = [
        ("task", o.task),
        ("domain", o.domain),
        ("level", o.level),
        ("effort", o.effort),
        ("outcome", {"solved": "solved", "failed": "failed", "unjudged": "not judged"}[state]),
        ("stopped", o.stop),
        ("tokens out", o.output_tokens),
        ("of them thinking", o.thinking_tokens),
        ("calls", o.calls),
        ("reward", figure(o.reward)),
        ("reward in training", figure(training.get("reward")) if "reward" in training else None),
        ("advantage", _advantage_words(training.get("advantage"))),
        ("policy version", training.get("policy_version")),
        ("suspected of", ", ".join(map(str, hacks)) if hacks else None),
        *(
            (f"{name} ({d.role})", "not judged" if d.value is None else figure(d.value))
            for name, d in o.dimensions.items()
        ),
    ]
    rows = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts if value not in (None, "")
    )
    return f'<dl class="facts">{rows}</dl>{"".join(_flow(trace, training, tokenizer))}'


def _advantage_words(advantage: Any) -> str | None:
    if isinstance(advantage, int | float):
        return f"{advantage:+.3g} for every token"
    if isinstance(advantage, list) and advantage:
        return f"{min(advantage):+.3g} to {max(advantage):+.3g}, by token"
    return None


def _flow(trace: Json, training: Json, tokenizer: Tokenizer | None) -> Iterator[str]:
    nodes = [n for n in trace.get("nodes") or () if isinstance(n, dict)]
    branch, others = longest_branch(nodes)
    house = (trace.get("info") or {}).get("overland") or {}
    forced_at = house.get("forced") or {}
    given = training.get("advantage")
    each = iter(given) if isinstance(given, list) else None
    largest = max((abs(x) for x in given), default=0.0) if isinstance(given, list) else abs(given or 0.0)
    for index in branch:
        node = nodes[index]
        ids = [i for i in node.get("token_ids") or () if isinstance(i, int)]
        if not ids:
            continue
        mask = [*(bool(m) for m in node.get("mask") or ()), *[False] * len(ids)][: len(ids)]
        drawn = iter(node.get("logprobs") or ())
        forced = set(forced_at.get(str(index)) or ())
        spans = []
        for i, (id, word) in enumerate(zip(ids, token_words(ids, tokenizer), strict=True)):
            shown = text(word).replace("\n", "⏎\n")
            if not mask[i]:
                spans.append(f'<span class="tok{" forced" if i in forced else ""}" title="id {id}">{shown}</span>')
                continue
            logp = float(next(drawn, 0.0))
            advantage = next(each, 0.0) if each is not None else (given if isinstance(given, int | float) else None)
            strength = abs(advantage) / largest if advantage and largest else 0.0
            way = "" if not advantage else " up" if advantage > 0 else " down"
            known = f"id {id}, log-probability {logp:.3f}"
            known += f", advantage {advantage:+.3g}" if advantage is not None else ""
            spans.append(
                f'<span class="tok sampled{way}" style="--u:{min(1.0, -logp / UNLIKELY):.2f};--a:{strength:.2f}" '
                f'title="{known}">{shown}</span>'
            )
        role = str((node.get("message") or {}).get("role") or "?")
        who = f"{text(role)}, {len(ids)} tokens, {sum(mask)} sampled"
        yield f'<div class="message {text(role)}"><div class="who">{who}</div>'
        yield f'<div class="flow">{"".join(spans)}</div></div>'
    if others:
        yield f'<p class="missing">{others} more branch{"es" * (others > 1)} of this episode not shown.</p>'
