"""Somebody's conversations (dialects.py), as dialogues to learn from."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from overland.chat import XTML, Message, Tokenizer, ToolSpec, normalise_effort
from overland.errors import OverlandError, UsageError
from overland.pipeline.dialects import read_dialect
from overland.train import Dialogue


def read_conversations(
    path: Path, tokenizer: Tokenizer, context: int, too_long: Literal["refuse", "drop"] = "refuse"
) -> list[Dialogue]:
    """One dialogue a row of a .json, .jsonl or .jsonl.zst file. Raises UsageError naming the line that is wrong.

    A line: {"messages": [...], "tools": [...], "effort": "low"|"high"|"max"}, the last two optional.
    """
    if not path.is_file():
        raise UsageError(f"data = '{path}': there is no such file")
    template = XTML()
    found, dropped = [], 0
    for number, row in enumerate(read_dialect(path), 1):
        where = f"{path}: line {number}"
        try:
            messages = [Message.from_openai(message) for message in row["messages"]]
            tools = [_tool(tool) for tool in row.get("tools") or ()]
            effort = normalise_effort(row["effort"]) if row.get("effort") else None
            segments = template.render(messages, tools, effort, generate=False)
        except KeyError as error:
            raise UsageError(f"{where}: {error.args[0]!r} is missing") from None
        except (OverlandError, TypeError, AttributeError) as error:
            raise UsageError(f"{where}: {error}") from None
        encoded = template.encode(segments, tokenizer)
        if len(encoded.ids) > context:
            if too_long == "drop":
                dropped += 1
                continue
            raise UsageError(f"{where}: is {len(encoded.ids)} tokens long, the model's context holds {context}; cut it")
        if not any(encoded.trained[1:]):
            raise UsageError(f"{where}: has no assistant message; there is nothing to learn")
        found.append(Dialogue(tuple(encoded.ids), tuple(encoded.trained), str(row.get("domain", ""))))
    if not found and dropped:
        raise UsageError(f"data = '{path}': all {dropped} conversations are longer than the context, {context} tokens")
    if not found:
        raise UsageError(f"data = '{path}': is empty")
    if dropped:
        print(f"{path}: {dropped} of {dropped + len(found)} conversations do not fit {context} tokens", file=sys.stderr)
    return found


def held_out_part(dialogues: Sequence[Dialogue], share: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """(learned, held out), drawn by content: equal conversations never stand on both sides."""
    learned: list[Dialogue] = []
    kept_out: list[Dialogue] = []
    for dialogue in dialogues:
        digest = hashlib.sha256(repr(dialogue.ids).encode()).digest()
        (kept_out if int.from_bytes(digest[:4], "big") < share * 2**32 else learned).append(dialogue)
    return (learned, kept_out) if learned else (list(dialogues), [])


def _tool(data: dict[str, Any]) -> ToolSpec:
    function = data.get("function", data)
    return ToolSpec(function["name"], function.get("description", ""), function.get("parameters") or {})
