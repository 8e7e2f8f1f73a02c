"""Somebody's JSON Lines become dialogues, or the line that is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studio.made_up import small_tokenizer

from overland.chat import XTML, Message, Tokenizer, ToolCall, ToolSpec
from overland.errors import UsageError
from overland.pipeline.conversations import held_out_part, read_conversations
from overland.runs import write_jsonl_zst
from overland.train import Dialogue

CALL = ToolCall("sh:0", "sh", '{"cmd":"ls"}')
SPEC = ToolSpec("sh", "run", {"type": "object", "properties": {"cmd": {"type": "string"}}})
TALK = [
    Message("user", "what is here ?"),
    Message("assistant", "", "look", (CALL,)),
    Message("tool", "a.txt", tool_call_id="sh:0", name="sh"),
    Message("assistant", "a.txt"),
]
ROW = {"messages": [m.to_openai() for m in TALK], "tools": [SPEC.to_openai()], "effort": "high", "domain": "files"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_conversation_is_encoded_as_the_template_has_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    [found] = read_conversations(written(tmp_path / "t.jsonl", ROW), tokenizer, 4096)
    template = XTML()
    wanted = template.encode(template.render(TALK, [SPEC], "high", generate=False), tokenizer)
    assert (list(found.ids), list(found.trained), found.label) == (wanted.ids, wanted.trained, "files")


def test_compressed_and_plain_files_say_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_jsonl_zst(tmp_path / "t.jsonl.zst", [ROW, ROW])
    packed = read_conversations(tmp_path / "t.jsonl.zst", tokenizer, 4096)
    assert packed == read_conversations(written(tmp_path / "t.jsonl", ROW, "", ROW), tokenizer, 4096)


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({}, "line 2: 'messages' is missing"),
        ({"messages": [{"role": "robot", "content": ""}]}, "line 2: messages[].role is 'robot'"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "line 2: has no assistant message"),
        ({**ROW, "effort": "huge"}, "line 2: "),
        ({**ROW, "tools": [{"function": {}}]}, "line 2: 'name' is missing"),
        ({"messages": 3}, "line 2: "),
    ],
)
def test_the_wrong_line_is_named(line: object, says: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as wrong:
        read_conversations(written(tmp_path / "t.jsonl", ROW, line), tokenizer, 4096)
    assert says in str(wrong.value)


def test_what_does_not_fit_the_context_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 1: is \d+ tokens long, the model's context holds 20"):
        read_conversations(written(tmp_path / "t.jsonl", ROW), tokenizer, 20)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_an_empty_or_binary_file_is_named(content: bytes, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=r"t\.jsonl"):
        read_conversations(tmp_path / "t.jsonl", tokenizer, 4096)


def test_equal_conversations_never_stand_on_both_sides() -> None:
    dialogues = [Dialogue((n % 50, n % 50 + 1), (False, True)) for n in range(200)]
    learned, kept_out = held_out_part(dialogues, 0.3)
    assert len(learned) + len(kept_out) == 200
    assert kept_out
    assert not {d.ids for d in learned} & {d.ids for d in kept_out}


def test_something_is_always_learned() -> None:
    one = [Dialogue((n, n + 1), (False, True)) for n in range(100)]
    kept = next(d for d in one if held_out_part([d, *one], 0.49)[1].count(d))
    assert held_out_part([kept], 0.49) == ([kept], [])
