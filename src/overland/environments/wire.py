"""Episodes to and from the wire form of verifiers v1 (0.4): plain JSON objects that `vf.WireEpisode` parses.

Verifiers sums rewards; ours have gates and penalties. So the reward dimensions are written as they are, gates and
monitors go to `metrics`, and a reward named "adjustment" holds what is missing to our total: both sides read the
same reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from json import dumps
from typing import Any, cast

from overland.chat import Message, ToolCall, ToolSpec
from overland.environments.episode import DECIMALS, TRACE_VERSION, Episode, MessageNode, ModelCall, Trace
from overland.environments.verify import Reward, Role
from overland.errors import BrokenFileError

HOUSE = "overland"
"""The key of `Trace.info` under which everything without a field of its own is kept."""

ADJUSTMENT = "adjustment"


def episode_to_record(episode: Episode) -> dict[str, Any]:
    task = _task_record(episode.task)
    record: dict[str, Any] = {
        "id": episode.id,
        "env": {"id": episode.env},
        "task": task,
        "ok": episode.ok,
        "is_timeout": episode.is_timeout,
        "errors": list(episode.errors),
        "traces": [_trace_record(trace, task) for trace in episode.traces],
    }
    if episode.group is not None:
        record["group"] = {"id": episode.group}
    if episode.run is not None:
        record["run"] = episode.run
    return record


def episode_from_record(record: Mapping[str, Any]) -> Episode:
    try:
        return Episode(
            id=record["id"],
            env=(record.get("env") or {}).get("id", ""),
            task=dict(record["task"]["data"]),
            traces=[_trace(trace) for trace in record.get("traces") or ()],
            group=(record.get("group") or {}).get("id"),
            run=record.get("run"),
            is_timeout=bool(record.get("is_timeout", False)),
            errors=list(record.get("errors") or ()),
        )
    except KeyError as error:
        raise BrokenFileError(f"episode record: field {error.args[0]!r} is missing") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise BrokenFileError(f"episode record: {error}") from None


def _task_record(data: Mapping[str, Any]) -> dict[str, Any]:
    digest = sha256(dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    return {
        "type": f"{str(data.get('domain', '')).capitalize()}Task",
        "data": dict(data),
        "key": data["id"],
        "hash": digest,
    }


def _trace_record(trace: Trace, task: dict[str, Any]) -> dict[str, Any]:
    weighted = {name: d for name, d in trace.dimensions.items() if d.role == "reward"}
    rewards: dict[str, Any] = {
        name: None if d.value is None else {"score": d.value, "weight": d.weight} for name, d in weighted.items()
    }
    if trace.reward is not None:
        missing = trace.reward - sum((d.value or 0.0) * d.weight for d in weighted.values())
        if missing:
            rewards[ADJUSTMENT] = {"score": missing, "weight": 1.0}
    metrics = {name: d.value for name, d in trace.dimensions.items() if d.role != "reward"}
    house = {
        "effort": trace.effort,
        "reward": trace.reward,
        "dimensions": {n: {"value": d.value, "weight": d.weight, "role": d.role} for n, d in trace.dimensions.items()},
        "forced": {
            str(i): [at for at, on in enumerate(n.forced) if on] for i, n in enumerate(trace.nodes) if any(n.forced)
        },
        "policy_versions": [call.policy_version for call in trace.calls],
    }
    sampling = {**trace.sampling, "reasoning_effort": trace.effort} if trace.effort else trace.sampling
    return {
        "version": TRACE_VERSION,
        "id": trace.id,
        "task": task,
        "agent": {
            "config": {"harness": {"id": HOUSE}, "runtime": {"type": "subprocess"}, "model": trace.model or None},
            "name": "agent",
            "trainable": True,
        },
        "tools": [_tool_record(tool) for tool in trace.tools],
        "nodes": [_node_record(node) for node in trace.nodes],
        "calls": [_call_record(call, trace.model, sampling) for call in trace.calls],
        "rewards": rewards,
        "metrics": {**metrics, **trace.metrics},
        "info": {**trace.info, HOUSE: house},
        "is_completed": trace.stop is not None,
        "ok": trace.ok,
        "stop_condition": trace.stop,
        "errors": list(trace.errors),
        "timing": {"start": trace.start, "agent": {"start": trace.start, "end": trace.end}},
    }


def _tool_record(tool: ToolSpec) -> dict[str, Any]:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _node_record(node: MessageNode) -> dict[str, Any]:
    return {
        "parent": node.parent,
        "message": message_record(node.message),
        "sampled": node.sampled,
        "timestamp": node.timestamp,
        "token_ids": node.token_ids,
        "mask": node.mask,
        "logprobs": [round(value, DECIMALS) for value in node.logprobs],
    }


def message_record(message: Message) -> dict[str, Any]:
    """A chat message in verifiers' flat form. Reasoning is written even when it is empty, so that it survives."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        record["reasoning_content"] = message.reasoning
        if message.tool_calls:
            record["tool_calls"] = [
                {"id": call.id, "type": "function", "name": call.name, "arguments": call.arguments}
                for call in message.tool_calls
            ]
    elif message.role == "tool":
        record["tool_call_id"] = message.tool_call_id or ""
        if message.name is not None:
            record["name"] = message.name
    return record


def _call_record(call: ModelCall, model: str, sampling: Mapping[str, Any]) -> dict[str, Any]:
    reasons = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}
    return {
        "node": call.node,
        "model": model or None,
        "sampling": dict(sampling),
        "finish_reason": reasons.get(call.finish_reason or ""),
        "usage": {
            "prompt_tokens": call.prompt_tokens - call.cached_tokens,  # verifiers counts cache reads apart
            "completion_tokens": call.completion_tokens,
            "cached_input_tokens": call.cached_tokens,
            "reasoning_tokens": call.reasoning_tokens,
        },
        "time": {"start": call.start, "end": call.end},
    }


def _trace(record: Mapping[str, Any]) -> Trace:
    info = dict(record.get("info") or {})
    house: Mapping[str, Any] = info.pop(HOUSE, None) or {}
    forced = house.get("forced") or {}
    versions = house.get("policy_versions") or []
    rewards, metrics = record.get("rewards") or {}, dict(record.get("metrics") or {})
    calls = record.get("calls") or ()
    timing = record.get("timing") or {}
    if "dimensions" in house:
        dimensions = {
            name: Reward(d.get("value"), d.get("weight", 1.0), cast(Role, d.get("role", "reward")))
            for name, d in house["dimensions"].items()
        }
        metrics = {name: value for name, value in metrics.items() if name not in dimensions}
        reward = house.get("reward")
    else:  # written by verifiers: its rewards are a plain weighted sum
        dimensions = {n: Reward(r and r["score"], r["weight"] if r else 1.0) for n, r in rewards.items()}
        judged = [r["score"] * r.get("weight", 1.0) for r in rewards.values() if r]
        reward = sum(judged) if judged else None
    first: Mapping[str, Any] = next(iter(calls), {})
    sampling = {k: v for k, v in (first.get("sampling") or {}).items() if k != "reasoning_effort"}
    return Trace(
        id=record["id"],
        nodes=[_node(node, forced.get(str(index), ())) for index, node in enumerate(record.get("nodes") or ())],
        calls=[_call(call, versions[i] if i < len(versions) else None) for i, call in enumerate(calls)],
        tools=[
            ToolSpec(t["name"], t.get("description", ""), t.get("parameters") or {}) for t in record.get("tools") or ()
        ],
        dimensions=dimensions,
        metrics=metrics,
        reward=reward,
        stop=record.get("stop_condition"),
        effort=house.get("effort", ""),
        model=(record.get("agent", {}).get("config") or {}).get("model") or "",
        sampling=sampling,
        info=info,
        errors=list(record.get("errors") or ()),
        start=timing.get("start", 0.0),
        end=(timing.get("agent") or {}).get("end", 0.0),
    )


def _node(record: Mapping[str, Any], forced: Sequence[int]) -> MessageNode:
    ids, mask = list(record.get("token_ids") or ()), list(record.get("mask") or ())
    logprobs = list(record.get("logprobs") or ())
    if len(ids) != len(mask):
        raise ValueError(f"mask has {len(mask)} values for {len(ids)} token_ids")
    if len(logprobs) != sum(mask):
        raise ValueError(f"logprobs has {len(logprobs)} values for {sum(mask)} sampled tokens")
    on = set(forced)
    return MessageNode(
        message=message_from_record(record["message"]),
        parent=record.get("parent"),
        sampled=bool(record.get("sampled", False)),
        token_ids=ids,
        mask=mask,
        logprobs=logprobs,
        forced=[at in on for at in range(len(ids))],
        timestamp=record.get("timestamp", 0.0),
    )


def message_from_record(record: Mapping[str, Any]) -> Message:
    """Reads `message_record`'s form; of content parts only text is kept."""
    content = record.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    return Message(
        role=record["role"],
        content=content,
        reasoning=record.get("reasoning_content") or "",
        tool_calls=tuple(ToolCall(c["id"], c["name"], c["arguments"]) for c in record.get("tool_calls") or ()),
        tool_call_id=record.get("tool_call_id"),
        name=record.get("name"),
    )


def _call(record: Mapping[str, Any], version: int | str | None) -> ModelCall:
    usage, time = record.get("usage") or {}, record.get("time") or {}
    cached = usage.get("cached_input_tokens") or 0
    return ModelCall(
        node=record.get("node"),
        finish_reason=record.get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens", 0) + cached,
        completion_tokens=usage.get("completion_tokens", 0),
        reasoning_tokens=usage.get("reasoning_tokens") or 0,
        cached_tokens=cached,
        policy_version=version,
        start=time.get("start", 0.0),
        end=time.get("end", 0.0),
    )
