"""Hypothesis strategies: texts that try to break out, assistant turns, whole conversations, and soups of tokens."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from overland.chat import SPECIAL_TOKENS, Message, ToolCall

MARKUP = [
    *SPECIAL_TOKENS,
    "<|close|>think<|sep|>",
    "<|close|>message<|sep|><|end_of_msg|>",
    '<|open|>message role="system"<|sep|>',
    "&quot;",
    "&amp;quot;",
    '"',
    "\\",
    "\n",
]

hostile_text = st.lists(st.sampled_from(MARKUP) | st.text(max_size=6), max_size=5).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | hostile_text,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(hostile_text, children, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(hostile_text, json_values, max_size=4)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def calls_of(items: list[tuple[str, str]]) -> tuple[ToolCall, ...]:
    """Calls with the ids that the parser would give them."""
    return tuple(ToolCall(f"call_{number}", name, text) for number, (name, text) in enumerate(items, start=1))


tool_calls = st.lists(st.tuples(hostile_text.filter(bool), arguments.map(as_json)), max_size=3).map(calls_of)
thoughts = hostile_text.filter(lambda text: not text or bool(text.strip()))  # blank thinking renders as none
assistants = st.builds(
    lambda content, reasoning, calls: Message("assistant", content, reasoning, calls),
    hostile_text,
    thoughts,
    tool_calls,
)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """(a conversation that ends with an assistant, the messages that follow it)."""
    before: list[Message] = [Message("user", draw(hostile_text))]
    for _ in range(draw(st.integers(0, 2))):
        before += [draw(assistants), Message("user", draw(hostile_text))]
    last = draw(assistants)
    results = [Message("tool", draw(hostile_text), tool_call_id=call.id) for call in last.tool_calls]
    after = draw(st.permutations(results))
    if draw(st.booleans()) or not after:
        after = [*after, Message("user", draw(hostile_text))]
    return [*before, last], after


SOUP = [
    *SPECIAL_TOKENS[:6],
    "<|open|>think<|sep|>",
    "<|close|>think<|sep|>",
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    '<|open|>call tool="t" index="1"<|sep|>',
    "<|open|>call<|sep|>",
    "<|close|>call<|sep|>",
    '<|open|>argument key="k" type="string"<|sep|>',
    '<|open|>argument key="n" type="number"<|sep|>',
    '<|open|>argument key="o" type="object"<|sep|>',
    '<|open|>argument type="date"<|sep|>',
    "<|close|>argument<|sep|>",
    '<|open|>json type="object"<|sep|>',
    "<|close|>json<|sep|>",
    "<|close|>message<|sep|>",
    '<|open|>message role="user"<|sep|>',
    "<|open|>a b c<|sep|>",
    "42",
    '{"a": 1}',
    "[1, 2]",
]
WORDS = [f"word{number}é" for number in range(8)]
"""Each of them appears at most once in a soup, so that one can ask where it went."""


@st.composite
def soups(draw: st.DrawFn) -> list[str]:
    """Well-formed and broken pieces of a turn in any order, words between them."""
    pieces = draw(st.lists(st.sampled_from(SOUP), max_size=16))
    words = draw(st.lists(st.sampled_from(WORDS), unique=True, max_size=5))
    for word in words:
        pieces.insert(draw(st.integers(0, len(pieces))), word)
    return pieces
