"""The report's sections: each takes what a run stored and gives HTML, "" where the run stored nothing for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from overland.studio.charts import Series, bar_rows, interval_rows, line_chart, load_map
from overland.studio.markup import compact, duration, figure, gigabytes, number, percent, text
from overland.studio.stored import Json, Stored, bounds

STAGES = {"sft": "after SFT", "rl": "after RL", "mxfp4": "after MXFP4", "served": "when served"}
EFFORTS = ("low", "high", "max")
KNOWN_DOMAINS = ("terminal", "finance", "web")

LOAD = ("moe/shares/", "moe/load/")

Colours = Mapping[str, str]


def domains_of(run: Stored) -> list[str]:
    """Every domain the run names, the built-in ones first, so that each keeps its colour from run to run."""
    found: dict[str, None] = {}
    for stage in run.part("held_out").values():
        found |= dict.fromkeys(stage if isinstance(stage, dict) else ())
    for prefix in ("rl/reward/", "rl/success/"):
        # The same names also carry efforts and DOMAIN/LEVEL.
        found |= dict.fromkeys(n for n in run.names(prefix) if n not in EFFORTS and "/" not in n)
    found.pop("all", None)
    return [d for d in KNOWN_DOMAINS if d in found] + [d for d in found if d not in KNOWN_DOMAINS]


def colours_of(domains: Iterable[str]) -> dict[str, str]:
    """The colour class of each domain. The built-in domains own the first three whether or not the run has them."""
    order = [*KNOWN_DOMAINS, *(d for d in domains if d not in KNOWN_DOMAINS)]
    return {d: f"c-{i % 8}" for i, d in enumerate(order)} | {"all": "c-all"}


def headline(run: Stored) -> str:
    """What was done, in a sentence, and the figures a person quotes."""
    held_out = run.part("held_out")
    tiles = []
    after_sft, after_rl = bounds(run.part("held_out", "sft").get("all")), bounds(run.part("held_out", "rl").get("all"))
    for stage, label in STAGES.items():
        b = bounds(held_out.get(stage, {}).get("all")) if isinstance(held_out.get(stage), dict) else None
        if b is None:
            continue
        detail = f"95% interval {percent(b.low)} to {percent(b.high)}" + (f", {b.n} tasks" if b.n else "")
        if stage == "rl" and after_sft is not None and after_rl is not None:
            detail += f"; {100 * (after_rl.success - after_sft.success):+.0f} points over SFT"
        tiles.append(_tile(percent(b.success), f"held-out tasks solved {label}", detail))
    bpb = run.part("bpb")
    if (after := number(bpb.get("after"))) is not None:
        peers = [f"{label} {figure(v)}" for key, label in (("gzip", "gzip -9"), ("kn5", "KN 5-gram"))
                 if (v := number(bpb.get(key))) is not None]  # fmt: skip
        tiles.append(_tile(figure(after), "bits per byte of held-out text, after pretraining", "; ".join(peers)))
    if seconds := _sum(run.part("seconds")):
        cpu = _sum(run.part("cpu_seconds"))
        tiles.append(_tile(duration(seconds), "from start to end", f"{duration(cpu)} of CPU" if cpu else ""))
    return f'<p>{_story(run)}</p><div class="tiles">{"".join(tiles)}</div>'


def held_out(run: Stored, colours: Colours) -> str:
    """Success on held-out tasks, by domain and stage, as one interval chart."""
    stages = {stage: rows for stage, rows in run.part("held_out").items() if isinstance(rows, dict)}
    order = [s for s in STAGES if s in stages] + [s for s in stages if s not in STAGES]
    groups = ["all", *domains_of(run)]
    body = ""
    for domain in groups:
        rows = [(STAGES.get(s, s.replace("_", " ")), colours.get(domain, "c-muted"), b)
                for s in order if (b := bounds(stages[s].get(domain))) is not None]  # fmt: skip
        if rows:
            name = "all domains" if domain == "all" else domain
            body += f'<h3 class="{colours.get(domain, "c-muted")}">{text(name)}</h3>'
            body += interval_rows(rows, axis=False)
    if not body:
        return ""
    return (
        "<p>Tasks the model was never trained on, by domain and stage. The mark is the share of tasks solved, the bar "
        f'around it the 95% interval.</p><div class="rows">{body}{interval_rows([], unit="of tasks solved")}</div>'
        + _levels(run, colours)
    )


def learning(run: Stored) -> str:
    """Loss over steps, and held-out bits per byte beside a compressor and a counting model."""
    charts = ""
    for stage, title in (("pretrain", "Pretraining loss"), ("sft", "SFT loss")):
        points = run.series("train/loss", "pretrain") if stage == "pretrain" else run.series("sft/loss", "sft")
        line = Series("", "c-all", points)
        charts += line_chart(title, [line], x_label="optimiser step", y_label="nats per token, training batches")
    bpb = run.part("bpb")
    names = (("before", "before training"), ("gzip", "gzip -9"), ("kn5", "KN 5-gram"), ("after", "after training"))
    rows = [(label, "c-all" if key in ("before", "after") else "c-muted", value, figure(value))
            for key, label in names if (value := number(bpb.get(key))) is not None]  # fmt: skip
    rows.sort(key=lambda row: -row[2])
    if rows:
        unit = (
            "bits per byte, fewer is better; gzip -9 has seen none of the training text, the Kneser-Ney 5-gram was "
            "counted on all of it"
        )
        charts += _figure("Held-out text", unit, bar_rows(rows))
    curve = run.series("train/bpb_heldout") or run.series("held_out/bits_per_byte", "pretrain")
    if len(curve) > 2:  # two points are already in the bars above
        marks = [
            (label, v) for key, label in (("gzip", "gzip -9"), ("kn5", "KN 5-gram")) if (v := number(bpb.get(key)))
        ]
        charts += line_chart("Held-out text while training", [Series("model", "c-all", curve)], references=marks,
                             x_label="optimiser step", y_label="bits per byte")  # fmt: skip
    return f'<div class="pair">{charts}</div>' if charts else ""


def reinforcement(run: Stored, colours: Colours) -> str:
    """Success by level and reward by domain over RL steps.

    By level first: which levels a step holds follows from what is still to learn, so that a mean over all of them may
    fall while every level rises.
    """
    domains = domains_of(run)
    levels = sorted(name.split("/")[1] for name in run.names("rl/success/") if name.startswith("level/"))
    by_level = [
        Series(f"level {level}", f"c-{3 + i % 5}", run.series(f"rl/success/level/{level}", "rl"))
        for i, level in enumerate(levels)
    ]

    def by_domain(prefix: str) -> list[Series]:
        return [Series(d, colours.get(d, "c-muted"), run.series(prefix + d, "rl")) for d in domains]

    charts = line_chart("Tasks solved in training, by level", by_level, x_label="RL step",
                        y_label="share of sampled episodes", shares=True)  # fmt: skip
    charts += line_chart("Reward, by domain", by_domain("rl/reward/"), x_label="RL step",
                         y_label="mean over sampled episodes, harder ones as easy ones are solved")  # fmt: skip
    meters = (
        (
            "rl/groups_without_variance",
            "Groups without a signal",
            "share of groups in which every sample earned the same",
        ),
        ("rl/mismatch_kl", "Trainer and sampler disagree", "KL, nats per token; near 0 is healthy"),
        ("rl/entropy", "Entropy", "nats per sampled token"),
    )
    for name, title, unit in meters:
        line = Series("", "c-all", run.series(name, "rl"))
        charts += line_chart(title, [line], x_label="RL step", y_label=unit, from_zero=True)
    return f'<div class="pair">{charts}</div>' if charts else ""


def efforts(run: Stored) -> str:
    """What each effort solves and what it spends."""
    stored = run.part("efforts")
    order = [e for e in EFFORTS if e in stored] + [e for e in stored if e not in EFFORTS]
    colours = {"low": "c-3", "high": "c-6", "max": "c-4"}
    solved = [(e, colours.get(e, "c-muted"), b) for e in order if (b := bounds(stored[e])) is not None]
    spent = [(e, colours.get(e, "c-muted"), t, f"{figure(t)} tokens") for e in order
             if isinstance(stored[e], dict) and (t := number(stored[e].get("tokens"))) is not None]  # fmt: skip
    charts = ""
    if solved:
        rows = interval_rows(solved, unit="of tasks solved")
        charts += _figure("Held-out tasks solved", "by effort, with the 95% interval", rows)
    if spent:
        charts += _figure("Tokens spent", "mean sampled tokens a task: thinking, calls and answer", bar_rows(spent))
    lines = [Series(e, colours[e], run.series(f"rl/tokens/{e}", "rl")) for e in EFFORTS]
    charts += line_chart("Tokens by effort while training", lines, x_label="RL step",
                         y_label="mean sampled tokens an episode", from_zero=True)  # fmt: skip
    return f'<div class="pair">{charts}</div>' if charts else ""


def experts(run: Stored) -> str:
    """Expert load by layer where it was last recorded, and how uneven it was on the way."""
    layers: dict[str, list[float]] = {}
    where = ""
    for row in run.metrics:
        found = {name.rsplit("/", 1)[1]: shares for name, value in row.items()
                 if name.startswith(LOAD) and (shares := _shares(value)) is not None}  # fmt: skip
        if found:
            layers, where = found, f"{row.get('stage', '')} step {row.get('step', '')}"
    body = ""
    if layers:
        body += (
            f"<p>Tokens that each routed expert received at {text(where)}, as a multiple of an even share: 1.0 is "
            "perfectly balanced. ▲ marks twice an even share or more, ✕ an expert that is nearly unused.</p>"
            + load_map([(name, layers[name]) for name in sorted(layers, key=lambda n: (len(n), n))])
        )
    uneven = _staged(run, "moe/load_max_over_mean") or _staged(run, "moe/max_over_mean")
    return body + line_chart("Most loaded expert", uneven, x_label="step of its stage",
                             y_label="load of the fullest expert over the mean; 1 is even")  # fmt: skip


def costs(run: Stored) -> str:
    """Seconds, CPU seconds, tokens and memory by stage."""
    seconds, cpu, tokens = run.part("seconds"), run.part("cpu_seconds"), run.part("tokens")
    memory = {stage: size for stage, found in run.part("memory_bytes").items() if (size := number(found)) is not None}
    stages = [s for s in dict.fromkeys([*seconds, *cpu, *tokens]) if s not in ("total", "all")]
    if not stages:
        return ""
    rows = ""
    for stage in stages:
        s, c, t = (number(part.get(stage)) for part in (seconds, cpu, tokens))
        rate = compact(t / s) if t is not None and s else "–"
        rows += (
            f'<tr><th scope="row">{text(stage)}</th><td>{duration(s)}</td><td>{duration(c)}</td>'
            f"<td>{compact(t)}</td><td>{rate}</td><td>{gigabytes(memory.get(stage))}</td></tr>"
        )
    s, c, t = _sum(seconds), _sum(cpu), _sum(tokens)
    return (
        '<div class="scroll"><table><thead><tr><th>stage</th><th>wall time</th><th>CPU time</th><th>tokens</th>'
        "<th>tokens a second</th><th>most memory</th></tr></thead>"
        f"<tbody>{rows}</tbody><tfoot><tr><th>all</th><td>{duration(s)}</td><td>{duration(c)}</td><td>{compact(t)}</td>"
        f"<td></td><td>{gigabytes(max(memory.values(), default=None))}</td></tr></tfoot></table></div>"
    )


def alarms(run: Stored) -> str:
    """What the run warned of, oldest first; a repeated warning once, with how often."""
    counted: dict[tuple[str, str], list[tuple[Any, str]]] = {}
    for row in run.metrics:
        words = row.get("alarm/message") or row.get("alarm")
        if words:
            # Kinds are repeated with other figures in their words; a warning without a kind is its own kind.
            kind = str(row.get("alarm/kind") or words)
            counted.setdefault((str(row.get("stage", "")), kind), []).append((row.get("step"), str(words)))
    if not counted:
        return "<p>None was raised.</p>" if run.metrics else ""
    return "".join(
        f'<p class="alarm"><b>{text(stage)} step {text(raised[0][0])}</b>'
        f"{f' and {len(raised) - 1} more up to step {text(raised[-1][0])}' if len(raised) > 1 else ''}: "
        f"{text(raised[0][1])}</p>"
        for (stage, _), raised in counted.items()
    )


def _levels(run: Stored, colours: Colours) -> str:
    """Success by level, as stored: levels.{DOMAIN}.{LEVEL} or levels.{STAGE}.{DOMAIN}.{LEVEL}."""
    stored = run.part("levels")
    staged = {s: v for s, v in stored.items() if s in STAGES and isinstance(v, dict)} or {"": stored}
    body = ""
    for stage, by_domain in staged.items():
        for domain, by_level in by_domain.items():
            if not isinstance(by_level, dict):
                continue
            rows = [(f"level {level}", colours.get(domain, "c-muted"), b)
                    for level, record in sorted(by_level.items(), key=lambda kv: str(kv[0]))
                    if (b := bounds(record)) is not None]  # fmt: skip
            if rows:
                title = f"{domain}, {STAGES[stage]}" if stage else domain
                body += (
                    f'<h3 class="{colours.get(domain, "c-muted")}">{text(title)}</h3>{interval_rows(rows, axis=False)}'
                )
    if not body:
        return ""
    rows_html = f'<div class="rows">{body}{interval_rows([], unit="of tasks solved")}</div>'
    summary = "By level (a level needs one tool call more than the one before)"
    return f"<details><summary>{summary}</summary>{rows_html}</details>"


def _shares(value: Any) -> list[float] | None:
    """A stored list of shares, or None where it holds anything but numbers from 0 up."""
    shares = [number(v) for v in value] if isinstance(value, list) else []
    known = [s for s in shares if s is not None and s >= 0]
    return known if known and len(known) == len(shares) else None


def _staged(run: Stored, name: str) -> list[Series]:
    """One line a stage, because each stage counts its own steps."""
    stages = dict.fromkeys(str(row.get("stage", "")) for row in run.metrics if name in row)
    stages = {s: None for s in stages if s in ("", "pretrain", "sft", "rl")}  # controls are no part of the story
    classes = {"pretrain": "c-all", "sft": "c-3", "rl": "c-6"}
    return [Series(s or "all", classes.get(s, "c-muted"), run.series(name, s or None)) for s in stages]


def _story(run: Stored) -> str:
    """One sentence on what was run, from the recipe and the manifest, naming only what they hold."""
    parts = []
    tokens = run.part("tokens")
    if (t := number(tokens.get("pretrain"))) is not None:
        parts.append(f"pretrained on {compact(t)} tokens")
    if (t := number(tokens.get("sft"))) is not None:
        parts.append(f"tuned on {compact(t)} tokens of demonstrations")
    if steps := len(run.series("rl/groups", "rl") or run.series("rl/success", "rl")):
        parts.append(f"reinforced for {steps} steps")
    if "mxfp4" in run.part("held_out"):
        parts.append("quantised to MXFP4")
    if "served" in run.part("held_out"):
        parts.append("served and measured again through its API")
    model = _deep(run.recipe, "model", "preset") or _deep(run.recipe, "model")
    name = f"The <b>{text(model)}</b> model" if isinstance(model, str) else "A model"
    return f"{name} was {_listing(parts)}." if parts else f"{name}: nothing has been measured yet."


def _deep(node: Any, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _listing(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _figure(title: str, unit: str, rows: str) -> str:
    return (
        f'<figure class="chart"><figcaption>{text(title)} <small>{text(unit)}</small></figcaption>'
        f'<div class="rows">{rows}</div></figure>'
    )


def _tile(value: str, label: str, detail: str) -> str:
    return f'<div class="tile"><b>{text(value)}</b><span>{text(label)}</span><small>{text(detail)}</small></div>'


def _sum(part: Json) -> float | None:
    """The stored total where there is one, else the stages together."""
    total = number(part.get("total"))
    if total is not None:
        return total
    values = [v for key, value in part.items() if key != "total" and (v := number(value)) is not None]
    return sum(values) if values else None
