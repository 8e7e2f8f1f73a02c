"""BFCL's multi-turn tasks as conversations to learn from: its ground-truth calls, run through its own stateful tools.

    python src/overland/pipeline/bfcl.py OUT.jsonl [--category base] [--limit 200]

Needs an interpreter with `bfcl-eval` (pip install --no-deps bfcl-eval) and nothing else, so it imports nothing of this
package. What it writes is read by `overland train sft` (`data = "OUT.jsonl"`). BFCL's data and tools are Apache-2.0.

A task is some requests by a user, and for each of them the calls that fulfil it. Each call becomes an assistant's turn,
the tool's answer follows, and the request ends with the last answer said back. There is no thinking in the data.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""BFCL's names of types to JSON Schema's."""


def conversations(category: str, limit: int) -> Iterator[dict[str, Any]]:
    """Rows in OpenAI's form, at most `limit`."""
    import bfcl_eval

    data = Path(bfcl_eval.__file__).parent / "data"
    name = f"BFCL_v4_multi_turn_{category}.json"
    tasks, answers = _lines(data / name), _lines(data / "possible_answer" / name)
    for task, answer in list(zip(tasks, answers, strict=True))[:limit]:
        if task["id"] != answer["id"]:
            raise SystemExit(f"{name}: {task['id']} is answered by {answer['id']}; the files do not belong together")
        yield conversation(task, answer["ground_truth"], data / "multi_turn_func_doc", category == "long_context")


def conversation(task: dict[str, Any], truth: list[list[str]], docs: Path, long_context: bool) -> dict[str, Any]:
    """One task, played."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    tools = [tool for c in task["involved_classes"] for tool in _lines(docs / MULTI_TURN_FUNC_DOC_FILE_MAPPING[c])]
    positions = {tool["name"]: list(tool["parameters"].get("properties", {})) for tool in tools}
    messages: list[dict[str, Any]] = []
    count = 0
    for asked, calls in zip(task["question"], truth, strict=True):
        messages += asked
        results, _ = execute_multi_turn_func_call(
            calls, task["initial_config"], task["involved_classes"], "oracle", task["id"], long_context
        )
        said = "I need more to go on before I can do this."
        for call, result in zip(calls, results, strict=True):
            count += 1
            function = parse_call(call, positions)
            messages.append({
                "role": "assistant", "content": "",
                "tool_calls": [{"id": f"call_{count}", "type": "function", "function": function}],
            })  # fmt: skip
            messages.append(
                {"role": "tool", "tool_call_id": f"call_{count}", "name": function["name"], "content": result}
            )
            said = result
        messages.append({"role": "assistant", "content": said})
    return {
        "id": task["id"],
        "domain": "bfcl",
        "tools": [{"type": "function", "function": _schema(tool)} for tool in tools],
        "messages": messages,
    }


def parse_call(text: str, positions: dict[str, list[str]]) -> dict[str, str]:
    """`mv(source='a', destination='b')` as a function call; positional arguments get their names."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r} is not a call")
    names = positions.get(call.func.id, [])
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    arguments |= {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return {"name": call.func.id, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool's declaration in JSON Schema. The description of what it returns is not part of it."""
    return {"name": tool["name"], "description": tool["description"], "parameters": _typed(tool["parameters"])}


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {k: TYPES.get(v, v) if k == "type" and isinstance(v, str) else _typed(v) for k, v in value.items()}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--category", choices=CATEGORIES, default="base")
    parser.add_argument("--limit", type=int, default=200)
    asked = parser.parse_args()
    rows = list(conversations(asked.category, asked.limit))
    asked.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    calls = sum(len(m.get("tool_calls", ())) for row in rows for m in row["messages"])
    print(f"{len(rows)} conversations, {calls} calls: {asked.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
