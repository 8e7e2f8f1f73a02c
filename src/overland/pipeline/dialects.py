"""Conversations as people store them, read into OpenAI's form: {"messages": [...], "tools": [...]}, one a row.

Known dialects, told apart by their fields:
- OpenAI's own: `messages` with `content`, `tool_calls`, `reasoning_content`;
- parts: `messages` whose content is a list of {"type": "text" | "reasoning" | "tool_call", "value": ...};
- ShareGPT: `conversations` of {"from": "human" | "gpt" | "function_call" | "observation", "value": ...}.

A file is JSON lines, compressed or not, or one JSON array. `tools` may be JSON in a string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overland.errors import UsageError
from overland.runs import read_jsonl_zst

SHAREGPT = {
    "human": "user",
    "user": "user",
    "system": "system",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
Row = dict[str, Any]


def read_dialect(path: Path) -> Iterator[Row]:
    """The file's conversations in OpenAI's form; other fields of a row are kept. Raises UsageError naming the row."""
    for number, raw in enumerate(_rows(path), 1):
        try:
            yield to_openai(raw)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{path}: line {number}: {what}") from None


def to_openai(raw: Mapping[str, Any]) -> Row:
    """One conversation. Raises KeyError or ValueError for what is no known dialect."""
    row = dict(raw)
    if isinstance(row.get("tools"), str):
        row["tools"] = json.loads(row["tools"])
    if "conversations" in row and "messages" not in row:
        turns = [_sharegpt(turn) for turn in row.pop("conversations")]
        if isinstance(row.get("system"), str) and row["system"]:
            turns.insert(0, {"role": "system", "content": row.pop("system")})
        row["messages"] = turns
    elif not isinstance(row["messages"], list):
        raise ValueError("'messages' is not a list")
    elif any(_has_parts(message) for message in row["messages"]):
        row["messages"] = [_parts(message) for message in row["messages"]]
    row["messages"] = _with_ids(row["messages"])
    return row


def _sharegpt(turn: Mapping[str, Any]) -> Row:
    speaker, value = turn["from"], turn["value"]
    if speaker not in SHAREGPT:
        raise ValueError(f"from = {speaker!r}; valid: {', '.join(SHAREGPT)}")
    if speaker == "function_call":
        calls = json.loads(value)
        return {"role": "assistant", "content": "", "tool_calls": [_call(c) for c in _as_list(calls)]}
    return {"role": SHAREGPT[speaker], "content": value}


def _has_parts(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(isinstance(p, dict) and "value" in p for p in content)


def _parts(message: Mapping[str, Any]) -> Row:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    by_kind: dict[str, list[str]] = {"text": [], "reasoning": [], "tool_call": []}
    for part in content:
        kind = part["type"]
        if kind not in by_kind:
            raise ValueError(f"content part of type {kind!r}; valid: {', '.join(by_kind)}")
        by_kind[kind].append(part["value"])
    found: Row = {**message, "content": "\n".join(by_kind["text"])}
    if by_kind["reasoning"]:
        found["reasoning_content"] = "\n".join(by_kind["reasoning"])
    if by_kind["tool_call"]:
        found["tool_calls"] = [_call(c) for value in by_kind["tool_call"] for c in _as_list(json.loads(value))]
    return found


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _call(call: Mapping[str, Any]) -> Row:
    arguments = call.get("arguments", call.get("parameters", {}))
    words = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": call["name"], "arguments": words}}


def _with_ids(messages: list[Row]) -> list[Row]:
    """Every call with an id, and every result with the id of the call it answers: the next one without a result.

    One result that is a JSON list as long as the calls it follows is the results of all of them.
    """
    found: list[Row] = []
    open_calls: list[tuple[str, str]] = []
    count = 0
    for at, message in enumerate(messages):
        if message.get("role") == "assistant" and message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                count += 1
                calls.append({**call, "id": call.get("id") or f"call_{count}"})
            open_calls = [(c["id"], c["function"]["name"]) for c in calls]
            found.append({**message, "content": message.get("content") or "", "tool_calls": calls})
        elif message.get("role") == "tool" and not message.get("tool_call_id"):
            alone = at + 1 == len(messages) or messages[at + 1].get("role") != "tool"
            for part in _split(message["content"], len(open_calls)) if alone else [message["content"]]:
                if not open_calls:
                    raise ValueError(f"messages[{at}]: a tool's result without a call")
                id, name = open_calls.pop(0)
                found.append({**message, "content": part, "tool_call_id": id, "name": message.get("name") or name})
        else:
            found.append(message)
    return found


def _split(content: str, calls: int) -> list[str]:
    if calls < 2:
        return [content]
    try:
        parts = json.loads(content)
    except ValueError:
        return [content]
    if not isinstance(parts, list) or len(parts) != calls:
        return [content]
    return [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts]


def _rows(path: Path) -> Iterator[Row]:
    if path.name.endswith(".zst"):
        yield from read_jsonl_zst(path)
        return
    try:
        text = path.read_text(encoding="utf-8", errors="strict")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not text in UTF-8") from None
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path}: is not JSON ({error})") from None
    else:
        rows = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UsageError(f"{path}: line {number} is not JSON ({error})") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(f"{path}: line {number} is not a JSON object")
        yield row
