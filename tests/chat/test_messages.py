"""Messages and tools: both ways to Chat Completions data, and which calls may run.

Chat Completions data is held against the types of the `openai` client.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.chat import MalformedCall, Message, ToolCall, ToolSpec, check_call
from overland.errors import UsageError

from .strategies import assistants, hostile_text

ADD = ToolSpec(
    "add",
    "Add.",
    {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "array", "items": {"type": "number"}}},
        "required": ["a"],
        "additionalProperties": False,
    },
)


@given(
    message=assistants
    | st.builds(lambda text, call: Message("tool", text, tool_call_id=call, name="add"), hostile_text, hostile_text)
    | st.builds(lambda text: Message("system", text, tools=(ADD,)), hostile_text)
)
def test_messages_come_back_from_chat_completions_data(message: Message):
    assert Message.from_openai(message.to_openai()) == message


def test_the_openai_client_accepts_our_assistant_messages():
    openai_chat = pytest.importorskip("openai.types.chat")
    message = Message("assistant", "Adding.", "plan", (ToolCall("c1", "add", '{"a": 1}'),))
    theirs = openai_chat.ChatCompletionMessage.model_validate(message.to_openai(), strict=True)
    assert theirs.tool_calls[0].function.arguments == '{"a": 1}'
    assert Message.from_openai(theirs.model_dump(exclude_none=True)) == message


def test_other_spellings_of_a_message_are_read():
    assert Message.from_openai({"role": "developer", "content": "s"}) == Message("system", "s")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert Message.from_openai({"role": "user", "content": parts}) == Message("user", "ab")
    loose = {"role": "assistant", "reasoning": "r", "tool_calls": [{"id": 7, "name": "t", "arguments": {"k": "é"}}]}
    assert Message.from_openai(loose) == Message("assistant", "", "r", (ToolCall("7", "t", '{"k": "é"}'),))


@pytest.mark.parametrize(
    "data, field",
    [
        ({"content": "a"}, "role"),
        ({"role": "robot", "content": "a"}, "role"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "image_url"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "name"),
        ({"role": "assistant", "reasoning_content": ["a"]}, "reasoning_content"),
    ],
)
def test_a_message_that_is_none_is_refused_by_field(data: dict, field: str):
    with pytest.raises(UsageError, match=field):
        Message.from_openai(data)


def test_tools_come_back_from_chat_completions_data():
    assert ToolSpec.from_openai(ADD.to_openai()) == ADD
    bare = {"type": "function", "function": {"name": "now"}}
    assert ToolSpec.from_openai(bare).to_openai() == bare


@pytest.mark.parametrize(
    "name, arguments, code, says",
    [
        ("ad", "{}", "unknown_tool", "Did you mean add?"),
        ("zzz", "{}", "unknown_tool", "Tools: add"),
        ("add", '{"a": ', "bad_json", "not valid JSON"),
        ("add", '{"a": NaN}', "bad_json", "NaN"),
        ("add", '{"a": 1e999}', "bad_json", "1e999"),
        ("add", '{"a": ' + "9" * 5000 + "}", "bad_json", "JSON"),
        ("add", "[" * 100000, "bad_json", "nested"),
        ("add", "[1]", "not_an_object", "list"),
        ("add", "{}", "schema", "'a' is a required property"),
        ("add", '{"a": "1"}', "schema", "argument a"),
        ("add", '{"a": 1, "b": [1, "x"]}', "schema", "argument b.1"),
        ("add", '{"a": 1, "c": 2}', "schema", "'c'"),
    ],
)
def test_a_call_that_may_not_run_says_why(name: str, arguments: str, code: str, says: str):
    with pytest.raises(MalformedCall) as caught:
        check_call(ToolCall("c", name, arguments), [ADD])
    assert caught.value.code == code
    assert says in str(caught.value)


def test_a_call_that_fits_gives_its_arguments():
    assert check_call(ToolCall("c", "add", '{"a": 1.5, "b": [2]}'), [ADD]) == {"a": 1.5, "b": [2]}
    assert check_call(ToolCall("c", "now", ""), [ToolSpec("now")]) == {}


def test_a_broken_schema_names_its_tool():
    call = ToolCall("c", "t", "{}")
    with pytest.raises(UsageError, match=r"tools\[t\]"):
        check_call(call, [ToolSpec("t", "", {"type": "thing"})])
    with pytest.raises(UsageError, match=r"tools\[t\]"):
        check_call(call, [ToolSpec("t", "", {"$ref": "http://127.0.0.1:9/schema.json"})])
