"""Whole trajectories to read: messages by channel, tool calls and results, rewards by name, and the tokens themselves.

Everything here was written by a model, a tool or a task: every string goes through `text` before it reaches the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overland.chat import Tokenizer, describe_tokens
from overland.evaluate.outcomes import Outcome, outcome
from overland.studio.markup import figure, text
from overland.studio.stored import Json, Stored

SHOWN = 18
"""Trajectories on the page."""
LONGEST = 20_000
"""Characters of one message that are shown; the middle of a longer one is left out and counted."""
MOST_TOKENS = 4_000
"""Tokens of one message that are shown one by one."""


@dataclass(frozen=True)
class Picked:
    """An episode, how it came out, and the file it lies in."""

    episode: Json
    outcome: Outcome
    source: str


def pick(run: Stored, count: int = SHOWN) -> list[Picked]:
    """A spread of episodes: every domain, outcome and effort that occurs is shown before any is shown twice.

    Held-out and late files come first. Only the newest few files of a series are opened (an RL run writes one a step).
    """
    found: dict[tuple[str, bool | None, str], list[Picked]] = {}
    for path in _worth_reading(run.episode_files):
        for episode in run.episodes(path):
            judged = outcome(episode)
            bucket = found.setdefault((judged.domain, judged.success, judged.effort), [])
            if len(bucket) < count:
                bucket.append(Picked(episode, judged, path.name.removesuffix(".jsonl.zst")))
    order = {True: 0, False: 1, None: 2}
    return sorted(_in_turn(found, count), key=lambda p: (order[p.outcome.success], p.outcome.domain))


def trajectories(run: Stored, colours: Mapping[str, str]) -> str:
    """The whole section: filters (for browsers that run the page's script), legend, one block an episode."""
    picked = pick(run)
    if not picked:
        return '<p class="missing">No trajectories were stored.</p>'
    domains = sorted({p.outcome.domain for p in picked})
    # One that went well and one that did not lie open: what a good episode looks like, and how it goes wrong.
    opened = {next((i for i, p in enumerate(picked) if p.outcome.success is state), 0) for state in (True, False)}
    choices = "".join(f'<option value="{text(d)}">{text(d)}</option>' for d in domains)
    blocks = "".join(_episode(p, run.tokenizer, colours, opened=number in opened) for number, p in enumerate(picked))
    return (
        '<div class="filters" hidden><label>domain <select id="f-domain"><option value="">all</option>'
        f'{choices}</select></label><label>outcome <select id="f-outcome"><option value="">all</option>'
        '<option value="solved">solved</option><option value="failed">failed</option>'
        '<option value="unjudged">not judged</option></select></label>'
        '<button id="f-tokens" type="button">show all tokens</button><span id="f-count"></span></div>'
        '<p class="legend"><span class="tok sampled">sampled</span> by the model: what training learns from '
        '<span class="tok forced">forced</span> put in its mouth at a thinking budget, never learned from '
        '<span class="tok">read</span> prompt, template or tool result, never learned from</p>'
        f'<div id="episodes">{blocks}</div>'
    )


def _worth_reading(files: Sequence[Path]) -> list[Path]:
    """Files with numbered names (rl-00012) belong to a series, of which the last three and the first are read."""
    series: dict[str, list[Path]] = {}
    for path in files:
        name = path.name.removesuffix(".jsonl.zst")
        series.setdefault(name.rstrip("0123456789"), []).append(path)
    chosen: list[Path] = []
    for members in series.values():
        chosen += members if len(members) <= 4 else [*members[:-4:-1], members[0]]
    return chosen


def _in_turn(buckets: Mapping[tuple[str, bool | None, str], list[Picked]], count: int) -> list[Picked]:
    """One from each bucket, then a second from each, until there are enough."""
    taken: list[Picked] = []
    rank = 0
    while len(taken) < count and any(len(bucket) > rank for bucket in buckets.values()):
        for bucket in buckets.values():
            if len(bucket) > rank and len(taken) < count:
                taken.append(bucket[rank])
        rank += 1
    return taken


def _episode(picked: Picked, tokenizer: Tokenizer | None, colours: Mapping[str, str], *, opened: bool) -> str:
    o = picked.outcome
    state = {True: "solved", False: "failed", None: "unjudged"}[o.success]
    sign = {"solved": "✓ solved", "failed": "✗ failed", "unjudged": "? not judged"}[state]
    facts = [f"level {o.level}" if o.level is not None else "", f"effort {o.effort}" if o.effort else ""]
    facts += [
        f"{o.output_tokens} tokens out" if o.output_tokens is not None else "",
        f"{o.calls} call{'' if o.calls == 1 else 's'}",
    ]
    facts += [f"stop: {o.stop}" if o.stop else ""]
    trace = next(iter(_listed(picked.episode.get("traces"))), {})
    nodes = _listed(trace.get("nodes"))
    branch, others = longest_branch(nodes)
    forced = _forced(trace)
    body = "".join(_node(nodes[i], forced.get(str(i), ()), tokenizer, opened=opened) for i in branch)
    if others:
        body += f'<p class="missing">{others} more branch{"es" * (others > 1)} of this episode not shown.</p>'
    errors = [*_plain(picked.episode.get("errors")), *_plain(trace.get("errors"))]
    body += "".join(f'<p class="alarm">{text(error)}</p>' for error in errors)
    return (
        f'<details class="episode" data-domain="{text(o.domain)}" data-outcome="{state}"{" open" * opened}>'
        f'<summary><span class="domain {colours.get(o.domain, "c-muted")}">{text(o.domain)}</span> '
        f'<span class="{state}">{sign}</span> <small>{text(" · ".join(f for f in facts if f))}</small> '
        f'<small class="where">{text(o.task or o.id)}, from {text(picked.source)}</small></summary>'
        f'{_rewards(o, _training(trace))}<div class="messages">{body}</div></details>'
    )


def _rewards(o: Outcome, training: Mapping[str, Any]) -> str:
    if not o.dimensions:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{figure(d.value) if d.value is not None else "not judged"}</td>'
        f"<td>{figure(d.weight)}</td><td>{text(d.role)}</td></tr>"
        for name, d in o.dimensions.items()
    )
    total = "not judged" if o.reward is None else figure(o.reward)
    used = training.get("reward")
    if isinstance(used, int | float) and used != o.reward:
        total += f" ({figure(used)} in training" + (", over its budget)" if training.get("over_budget") else ")")
    return (
        '<table class="rewards"><thead><tr><th>reward</th><th>value</th><th>weight</th><th>role</th></tr></thead>'
        f'<tbody>{rows}</tbody><tfoot><tr><th scope="row">total</th><td>{total}</td><td></td><td></td></tr></tfoot>'
        "</table>"
    )


def _training(trace: Json) -> Mapping[str, Any]:
    """What the trainer made of the episode: the reward after budgets and penalties."""
    info = trace.get("info")
    training = info.get("training") if isinstance(info, dict) else None
    return training if isinstance(training, dict) else {}


def _forced(trace: Json) -> Mapping[str, Sequence[int]]:
    """Positions of forced tokens by node number; verifiers has no field for them, so they lie in `info`."""
    info = trace.get("info")
    house = info.get("overland") if isinstance(info, dict) else None
    forced = house.get("forced") if isinstance(house, dict) else None
    return {k: v for k, v in forced.items() if isinstance(v, list)} if isinstance(forced, dict) else {}


def longest_branch(nodes: Sequence[Json]) -> tuple[list[int], int]:
    """Indices of the longest path from a root to a leaf, and how many other leaves there are. A cycle just ends."""
    parents = [n.get("parent") for n in nodes]
    inner = {p for p in parents if isinstance(p, int)}
    leaves = [i for i in range(len(nodes)) if i not in inner]
    best: list[int] = []
    for leaf in leaves:
        path: list[int] = []
        at: Any = leaf
        while isinstance(at, int) and 0 <= at < len(nodes) and at not in path:
            path.append(at)
            at = parents[at]
        if len(path) >= len(best):
            best = path[::-1]
    return best, max(0, len(leaves) - 1)


def _node(node: Json, forced: Sequence[int], tokenizer: Tokenizer | None, *, opened: bool) -> str:
    held = node.get("message")
    message: Json = held if isinstance(held, dict) else {}
    role = str(message.get("role") or "?")
    name = message.get("name")
    shown = role if role in ("system", "user", "assistant", "tool") else "other"
    parts = [f'<div class="role">{text(role)}{f" · {text(name)}" if name else ""}</div>']
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        parts.append(_channel("think", _cut(reasoning)))
    content = _content(message.get("content"))
    if content:
        parts.append(_channel({"assistant": "response", "tool": "result"}.get(role, ""), _cut(content)))
    for call in _listed(message.get("tool_calls")):
        function = call["function"] if isinstance(call.get("function"), dict) else call
        arguments = function.get("arguments")
        words = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        parts.append(_channel("call", f"{function.get('name')} {_cut(words)}"))
    if len(parts) == 1 and role == "assistant":
        parts.append(_channel("response", "(empty)"))
    parts.append(_tokens(node, set(forced), tokenizer, opened=opened and role == "assistant"))
    return f'<div class="message {shown}">{"".join(parts)}</div>'


def _channel(name: str, words: str) -> str:
    label = f'<span class="channel">{name}</span>' if name else ""
    return f'<div class="said {name}">{label}<pre>{text(words)}</pre></div>'


def _tokens(node: Json, forced: set[int], tokenizer: Tokenizer | None, *, opened: bool) -> str:
    ids = node.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        return ""
    words = token_words(ids[:MOST_TOKENS], tokenizer)
    mask = _flags(node.get("mask"), len(ids))
    drawn = iter(_numbers(node.get("logprobs")))  # one a sampled token
    spans = []
    for i, word in enumerate(words):
        kind = " sampled" if mask[i] else " forced" if i in forced else ""
        logprob = next(drawn, None) if mask[i] else None
        known = f", log-probability {logprob:.2f}" if logprob is not None else ""
        # A newline is drawn and then obeyed; a space at a token's end stays visible through the token's own box.
        spans.append(
            f'<span class="tok{kind}" title="id {ids[i]}{known}">{text(word).replace(chr(10), "⏎" + chr(10))}</span>'
        )
    left = f" … {len(ids) - len(words)} more" if len(ids) > len(words) else ""
    counts = f"{len(ids)} tokens, {sum(mask)} sampled" + (f", {len(forced)} forced" if forced else "")
    return (
        f'<details class="tokens"{" open" * opened}><summary>{counts}</summary>'
        f'<div class="strip">{"".join(spans)}{left}</div></details>'
    )


def token_words(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """Each token as text; its number in angle brackets where there is no tokenizer or it does not know the id."""
    if tokenizer is None:
        return [f"⟨{i}⟩" for i in ids]
    size = tokenizer.vocab_size
    return [describe_tokens([i], tokenizer)[0] if 0 <= i < size else f"⟨{i}⟩" for i in ids]


def _flags(value: Any, length: int) -> list[bool]:
    flags = [bool(v) for v in value] if isinstance(value, list) else []
    return (flags + [False] * length)[:length]


def _numbers(value: Any) -> list[float]:
    return [v for v in value if isinstance(v, int | float)] if isinstance(value, list) else []


def _content(content: Any) -> str:
    """Message content as text: a string, or the text parts of a list (other parts by their type)."""
    if isinstance(content, list):
        parts = (p if isinstance(p, dict) else {"text": str(p)} for p in content)
        return "".join(str(p["text"]) if "text" in p else f"[{p.get('type', 'part')}]" for p in parts)
    return "" if content is None else str(content)


def _cut(words: Any) -> str:
    words = str(words)
    if len(words) <= LONGEST:
        return words
    half = LONGEST // 2
    return f"{words[:half]}\n… {len(words) - LONGEST:,} characters left out …\n{words[-half:]}"


def _listed(value: Any) -> list[Json]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _plain(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, default=str)
