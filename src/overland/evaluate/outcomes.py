"""What one stored episode came to: domain, level, effort, success, tokens, calls and why it stopped.

Reads the wire form of an episode (a JSON object), so that a live evaluation, a report and somebody else's file of
verifiers v1 episodes are judged by the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from overland.environments.verify import Reward, Role, succeeded

SOLVED = 1.0 - 1e-6
"""An episode that verifiers wrote knows no gates: it counts as solved when its weighted rewards reach this."""


@dataclass(frozen=True)
class Outcome:
    """One episode, judged. `success` is None where nothing was judged: an infrastructure failure is no failed task."""

    id: str
    task: str
    domain: str
    split: str
    level: int | None
    effort: str
    success: bool | None
    reward: float | None
    dimensions: dict[str, Reward]
    thinking_tokens: int | None
    output_tokens: int | None
    calls: int
    """Tool calls that the policy made, valid or not."""
    stop: str


def outcome(episode: Mapping[str, Any]) -> Outcome:
    """Judge an episode in wire form. Fields that are absent or malformed become "", None or 0, never an exception."""
    traces = episode.get("traces")
    trace = _mapping(traces[0]) if isinstance(traces, list) and traces else {}
    task = _mapping(episode.get("task")) or _mapping(trace.get("task"))
    data, house = _mapping(task.get("data")), _mapping(_mapping(trace.get("info")).get("overland"))
    dimensions, reward, success = _judged(trace, house)
    if episode.get("errors") or trace.get("errors"):
        reward, success = None, None
    nodes = [_mapping(n) for n in _list(trace.get("nodes"))]
    env = episode.get("env")
    return Outcome(
        id=str(episode.get("id") or trace.get("id") or ""),
        task=str(data.get("id") or task.get("key") or data.get("name") or ""),
        domain=str(data.get("domain") or (_mapping(env).get("id") if isinstance(env, Mapping) else env) or "unnamed"),
        split=str(data.get("split") or ""),
        level=_integer(data.get("level")),
        effort=_effort(trace, house),
        success=success,
        reward=reward,
        dimensions=dimensions,
        thinking_tokens=_used(trace, "reasoning_tokens"),
        output_tokens=_used(trace, "completion_tokens"),
        calls=sum(len(_list(_mapping(n.get("message")).get("tool_calls"))) for n in nodes),
        stop=str(trace.get("stop_condition") or ""),
    )


def _judged(trace: Mapping[str, Any], house: Mapping[str, Any]) -> tuple[dict[str, Reward], float | None, bool | None]:
    """Dimensions, reward and success: ours with roles where the record has them, else verifiers' weighted sum."""
    ours = _mapping(house.get("dimensions"))
    if ours:
        dimensions = {str(name): _dimension(value) for name, value in ours.items()}
        return dimensions, _number(house.get("reward")), succeeded(dimensions)
    dimensions = {str(name): _dimension(value) for name, value in _mapping(trace.get("rewards")).items()}
    judged = [d.value * d.weight for d in dimensions.values() if d.value is not None]
    if not judged or len(judged) < len(dimensions):
        return dimensions, None, None
    return dimensions, sum(judged), sum(judged) >= SOLVED


def _dimension(value: Any) -> Reward:
    record = _mapping(value) if isinstance(value, Mapping) else {"value": value}
    weight, role = _number(record.get("weight")), record.get("role")
    known = role in ("gate", "reward", "monitor")
    return Reward(
        _number(record.get("value", record.get("score"))),
        1.0 if weight is None else weight,
        cast(Role, role) if known else "reward",
    )


def _effort(trace: Mapping[str, Any], house: Mapping[str, Any]) -> str:
    if house.get("effort"):
        return str(house["effort"])
    sampling = [_mapping(_mapping(call).get("sampling")) for call in _list(trace.get("calls"))]
    return str(sampling[0].get("reasoning_effort") or "") if sampling else ""


def _used(trace: Mapping[str, Any], name: str) -> int | None:
    """Sum of one figure of the calls' usage; None where no call has it."""
    usage = [_integer(_mapping(_mapping(call).get("usage")).get(name)) for call in _list(trace.get("calls"))]
    known = [u for u in usage if u is not None]
    return sum(known) if known else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
