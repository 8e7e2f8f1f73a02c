"""A run's summary.json as a few tables for a terminal. Shows what is there; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "sft": "after SFT",
    "rl": "after RL",
    "mxfp4": "MXFP4",
    "served": "MXFP4, served",
    "sft_sampled": "after SFT, sampled",
    "rl_sampled": "after RL, sampled",
}


def summary_table(summary: Mapping[str, Any]) -> str:
    """Held-out success by checkpoint and domain, by effort, bits per byte, and what it cost."""
    parts = [_held_out(_part(summary, "held_out")), _efforts(_part(summary, "efforts")), _bits(_part(summary, "bpb"))]
    parts.append(_costs(_part(summary, "seconds"), _part(summary, "tokens"), _part(summary, "memory_bytes")))
    served = _part(summary, "served")
    if served:
        parts.append(
            f"Over HTTP {served.get('same_as_in_process')} of {served.get('conversations')} conversations were the "
            "same, word for word, as in the process."
        )
    return "\n\n".join(part for part in parts if part)


def _held_out(stages: Mapping[str, Any]) -> str:
    shown = [stage for stage in NAMES if stage in stages]
    if not shown:
        return ""
    domains = list(dict.fromkeys(d for stage in shown for d in stages[stage] if d != "all"))
    rows = [
        [NAMES[stage], *(_rate(stages[stage].get(domain)) for domain in [*domains, "all"]), _count(stages[stage])]
        for stage in shown
    ]
    return aligned([["held-out tasks solved", *domains, "all", "tasks"], *rows])


def _efforts(efforts: Mapping[str, Any]) -> str:
    if not efforts:
        return ""
    rows = [
        [
            name,
            _rate(score),
            _number(score.get("tokens")),
            _number(score.get("thinking_tokens")),
            _number(score.get("calls")),
        ]
        for name, score in efforts.items()
    ]
    return aligned([["effort, after RL", "solved", "tokens", "thinking", "calls"], *rows])


def _bits(bits: Mapping[str, Any]) -> str:
    if not bits:
        return ""
    return aligned([["bits per byte, held out", *bits], ["", *(_number(value, 2) for value in bits.values())]])


def _costs(seconds: Mapping[str, Any], tokens: Mapping[str, Any], memory: Mapping[str, Any]) -> str:
    if not seconds:
        return ""
    rows = [
        [stage, _number(spent), f"{tokens[stage]:,}" if stage in tokens else "", _gigabytes(memory.get(stage))]
        for stage, spent in seconds.items()
    ]
    total = ["all", _number(sum(map(float, seconds.values()))), "", _gigabytes(max(memory.values(), default=None))]
    return aligned([["stage", "seconds", "tokens", "memory"], *rows, total])


def aligned(rows: list[list[str]]) -> str:
    """Rows as text: the first column left, the others right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _part(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = summary.get(name)
    return value if isinstance(value, Mapping) else {}


def _rate(score: Any) -> str:
    if not isinstance(score, Mapping) or not score.get("n"):
        return "–"
    return f"{100 * score['success']:.0f}% ({100 * score['low95']:.0f}–{100 * score['high95']:.0f})"


def _count(stage: Mapping[str, Any]) -> str:
    return str(stage.get("all", {}).get("n", "–"))


def _number(value: Any, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "–"


def _gigabytes(value: Any) -> str:
    return f"{value / 1e9:.1f} GB" if isinstance(value, int | float) else "–"
