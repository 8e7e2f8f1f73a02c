"""Conversations as people store them: their dialects, and exact masks on real data.

The real data lies in ../shared/data beside the repository, or where OVERLAND_DATA says. The mask is held against the
streaming parser: what is learned must read back as the assistant's channels, message by message, and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import pytest
from studio.made_up import small_tokenizer

from overland.chat import Message, Tokenizer
from overland.chat.parser import ChannelParser
from overland.errors import UsageError
from overland.pipeline.conversations import read_conversations
from overland.pipeline.dialects import read_dialect, to_openai
from overland.train import Dialogue

FOLDER = Path(os.environ.get("OVERLAND_DATA") or Path(__file__).parents[3] / "shared" / "data")
REAL = {"glaive_toolcall_300.json": 300, "reason_tool_use_50.jsonl": 50, "tau_airline_success_84.json": 84}


def real(name: str) -> Path:
    if not (FOLDER / name).is_file():
        pytest.skip(f"{name} is not in {FOLDER}; OVERLAND_DATA names the folder that has it")
    return FOLDER / name


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def learned(dialogue: Dialogue) -> Iterator[list[int]]:
    """The runs of ids that carry loss."""
    for trained, run in groupby(zip(dialogue.ids, dialogue.trained, strict=True), key=lambda pair: pair[1]):
        if trained:
            yield [id for id, _ in run]


@pytest.mark.parametrize("name", REAL)
def test_what_is_learned_is_what_the_assistant_said_and_nothing_else(name: str, tokenizer: Tokenizer) -> None:
    path = real(name)
    rows = list(read_dialect(path))
    assert len(rows) == REAL[name]
    dialogues = read_conversations(path, tokenizer, context=1_000_000)
    assert len(dialogues) == len(rows)
    for row, dialogue in islice(zip(rows, dialogues, strict=True), 0, None, 6):
        said = [Message.from_openai(m) for m in row["messages"] if m["role"] == "assistant"]
        turns = list(learned(dialogue))
        assert len(turns) == len(said)
        for ids, message in zip(turns, said, strict=True):
            parser = ChannelParser(tokenizer, start="between")
            parser.feed(ids)
            turn = parser.finish()
            assert turn.errors == ()
            thought = message.reasoning if message.reasoning.strip() else ""
            assert (turn.content, turn.reasoning) == (message.content, thought)
            assert [(c.name, c.parsed()) for c in turn.tool_calls] == [(c.name, c.parsed()) for c in message.tool_calls]
        pairs = zip(dialogue.ids, dialogue.trained, strict=True)
        given = tokenizer.decode([id for id, trained in pairs if not trained])
        for message in row["messages"]:
            if message["role"] == "tool":
                assert message["content"] in given


def test_a_sharegpt_conversation_gets_calls_and_their_results() -> None:
    row = to_openai({
        "system": "be brief",
        "tools": '[{"name": "add", "parameters": {}}]',
        "conversations": [
            {"from": "human", "value": "1+2?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": 2}}'},
            {"from": "observation", "value": "3"},
            {"from": "gpt", "value": "It is 3."},
        ],
    })  # fmt: skip
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    call = row["messages"][2]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert row["messages"][3]["tool_call_id"] == call["id"]
    assert row["tools"] == [{"name": "add", "parameters": {}}]


def test_parts_become_channels_and_one_list_answers_several_calls() -> None:
    parts = [
        {"type": "reasoning", "value": "two calls"},
        {"type": "tool_call", "value": '{"name": "a", "arguments": {}}'},
        {"type": "tool_call", "value": '{"name": "b", "arguments": {}}'},
    ]
    result = {"role": "tool", "content": [{"type": "text", "value": '["x", {"y": 1}]'}]}
    messages = to_openai({"messages": [{"role": "assistant", "content": parts}, result]})["messages"]
    assert messages[0]["reasoning_content"] == "two calls"
    assert [(m["name"], m["content"]) for m in messages[1:]] == [("a", "x"), ("b", '{"y": 1}')]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"conversations": [{"from": "robot", "value": "x"}]}, "from = 'robot'"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "result without a call"),
        ({"messages": [{"role": "user", "content": [{"type": "sound", "value": "x"}]}]}, "type 'sound'"),
        ({"talk": []}, "'messages' is missing"),
        ({"messages": "hi"}, "is not a list"),
    ],
)
def test_what_is_no_conversation_is_named_by_line(row: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    good = {"messages": [{"role": "user", "content": "a\u2028b"}]}  # a separator of lines that does not end a row
    path.write_text(json.dumps(good, ensure_ascii=False) + "\n" + json.dumps(row), encoding="utf-8")
    with pytest.raises(UsageError, match=f"line 2: .*{says}"):
        list(read_dialect(path))


def test_a_conversation_that_does_not_fit_is_refused_or_left_out(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talks.json"
    talks = [[{"role": "user", "content": "hi " * n}, {"role": "assistant", "content": "hello"}] for n in (1, 200)]
    path.write_text(json.dumps([{"messages": talk} for talk in talks]))
    with pytest.raises(UsageError, match=r"line 2: is .* tokens long"):
        read_conversations(path, tokenizer, 100)
    assert len(read_conversations(path, tokenizer, 100, "drop")) == 1
    assert "1 of 2 conversations do not fit 100 tokens" in capsys.readouterr().err
    with pytest.raises(UsageError, match="all 2 conversations"):
        read_conversations(path, tokenizer, 5, "drop")
