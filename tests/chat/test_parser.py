"""The channel parser: what was rendered is read back, splits do not matter, and nothing breaks it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overland.chat import SPECIAL_TOKENS, XTML, Event, MalformedCall, Message, ParsedTurn, Tokenizer, ToolCall

from .strategies import WORDS, assistants, hostile_text, soups

X = XTML()
OPEN_CALL = '<|open|>call tool="t" index="1"<|sep|>'
ARGUMENT = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'
TO_TOOLS = "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
END = "<|close|>message<|sep|><|end_of_msg|>"


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a turn written as text in which markers mean the special tokens."""
    ids: list[int] = []
    while text:
        hits = [(text.find(name), name) for name in SPECIAL_TOKENS if name in text]
        at, name = min(hits) if hits else (len(text), "")
        ids += tokenizer.encode(text[:at]) if at else []
        ids += [tokenizer.special(name)] if name else []
        text = text[at + len(name) :]
    return ids


def parse(text: str, tokenizer: Tokenizer, thinking: bool = True) -> ParsedTurn:
    parser = X.parser(tokenizer, thinking)
    parser.feed(ids_of(text, tokenizer))
    return parser.finish()


def read(ids: list[int], cuts: list[int], tokenizer: Tokenizer) -> tuple[list[Event], ParsedTurn]:
    """All events and the turn, the ids fed in pieces."""
    parser = X.parser(tokenizer)
    events: list[Event] = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        events += parser.feed(ids[start:stop])
    turn = parser.finish()
    return events + parser.tail, turn


def joined(events: list[Event]) -> list[Event]:
    """Events with neighbouring deltas of one channel or call merged."""
    out: list[Event] = []
    for event in events:
        if out and event[0] not in ("call_start", "call_end") and event[:-1] == out[-1][:-1]:
            out[-1] = (*event[:-1], out[-1][-1] + event[-1])  # type: ignore[operator,assignment]
        else:
            out.append(event)
    return out


def channels(events: list[Event]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and (name, arguments) of every call, as a streaming client puts them together."""
    text = {"think": "", "response": ""}
    calls: list[tuple[str, str]] = []
    for event in events:
        if event[0] in text:
            text[event[0]] += str(event[1])
        elif event[0] == "call_start":
            assert event[1] == len(calls)
            calls.append((str(event[2]), ""))
        elif event[0] == "call_args":
            assert event[1] == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + str(event[2]))
    return text["think"], text["response"], calls


def cuts_of(data: st.DataObject, length: int) -> list[int]:
    return sorted(data.draw(st.lists(st.integers(0, length), max_size=8)))


@given(turn=assistants, thinking=st.booleans())
def test_what_was_rendered_is_read_back(tokenizer: Tokenizer, turn: Message, thinking: bool):
    prompt = X.prompt_ids([], tokenizer, thinking=thinking)
    whole = X.prompt_ids([turn], tokenizer, thinking=thinking, generate=False)
    assert whole[: len(prompt)] == prompt
    parser = X.parser(tokenizer, thinking)
    parser.feed(whole[len(prompt) :])
    expected = ParsedTurn(turn.reasoning if thinking else "", turn.content, turn.tool_calls, (), True)
    assert parser.finish() == expected


@given(turn=assistants, data=st.data())
def test_a_turn_does_not_depend_on_where_the_pieces_end(tokenizer: Tokenizer, turn: Message, data: st.DataObject):
    ids = X.prompt_ids([turn], tokenizer, generate=False)[len(X.prompt_ids([], tokenizer)) :]
    whole, pieces = read(ids, [], tokenizer), read(ids, cuts_of(data, len(ids)), tokenizer)
    assert (joined(pieces[0]), pieces[1]) == (joined(whole[0]), whole[1])
    assert channels(pieces[0]) == (turn.reasoning, turn.content, [(c.name, c.arguments) for c in turn.tool_calls])


@given(soup=soups(), data=st.data())
def test_a_broken_turn_is_read_whatever_the_pieces(tokenizer: Tokenizer, soup: list[str], data: st.DataObject):
    ids = ids_of("".join(soup), tokenizer)
    whole, pieces = read(ids, [], tokenizer), read(ids, cuts_of(data, len(ids)), tokenizer)
    assert (joined(pieces[0]), pieces[1]) == (joined(whole[0]), whole[1])
    turn = whole[1]
    assert channels(whole[0]) == (turn.reasoning, turn.content, [(c.name, c.arguments) for c in turn.tool_calls])


@given(soup=soups())
def test_of_a_broken_turn_nothing_is_lost_and_nothing_stands_twice(tokenizer: Tokenizer, soup: list[str]):
    turn = parse("".join(soup), tokenizer)
    said = [turn.reasoning, turn.content, *(text for call in turn.tool_calls for text in (call.name, call.arguments))]
    for word in WORDS:
        if word in soup:
            assert sum(text.count(word) for text in said) <= 1
            assert any(word in text for text in [*said, *turn.errors])
    assert not any(marker in text for text in said for marker in SPECIAL_TOKENS)


@given(soup=soups(), unfinished=st.sampled_from(["1}", ": 1}", '"}', ""]), kind=st.sampled_from(["number", "string"]))
def test_only_typed_arguments_that_were_said_to_the_end_parse(tokenizer, soup: list[str], unfinished: str, kind: str):
    begun = TO_TOOLS + OPEN_CALL + f'<|open|>argument key=", " type="{kind}"<|sep|>' + unfinished
    call = parse(begun + "".join(soup), tokenizer).tool_calls[0]
    try:
        call.parsed()
    except MalformedCall:
        return
    assert "".join(soup).index("<|close|>argument<|sep|>") < "".join(soup).index("<|close|>call<|sep|>")


@given(ids=st.lists(st.integers(0, 650), max_size=60))
def test_any_ids_at_all_give_a_turn(tokenizer: Tokenizer, ids: list[int]):
    assert tokenizer.vocab_size == 651
    events, turn = read(ids, [], tokenizer)
    assert channels(events)[:2] == (turn.reasoning, turn.content)


@given(text=hostile_text, data=st.data())
def test_characters_split_over_tokens_are_whole_in_the_deltas(tokenizer: Tokenizer, text: str, data: st.DataObject):
    ids = [id_ for byte in (text + "é🙂").encode() for id_ in byte_ids(byte, tokenizer)]
    events, turn = read(ids, list(range(len(ids))), tokenizer)
    assert turn.reasoning == text + "é🙂"
    assert not any("\ufffd" in str(event[1]) for event in events) or "\ufffd" in text


def byte_ids(byte: int, tokenizer: Tokenizer) -> list[int]:
    return [next(id_ for id_ in range(256) if tokenizer.bytes_of([id_]) == bytes([byte]))]


def test_half_a_character_at_the_end_is_kept_as_a_replacement(tokenizer: Tokenizer):
    events, turn = read(byte_ids(0xC3, tokenizer), [], tokenizer)
    assert (turn.reasoning, events) == ("\ufffd", [("think", "\ufffd")])


def test_string_arguments_stream_before_they_end(tokenizer: Tokenizer):
    parser = X.parser(tokenizer)
    parser.feed(ids_of(TO_TOOLS + OPEN_CALL, tokenizer))
    events = parser.feed(ids_of('<|open|>argument key="q" type="string"<|sep|>say "', tokenizer))
    assert events == [("call_args", 0, '{"q": "say \\"')]
    assert parser.feed(ids_of("hi", tokenizer)) == [("call_args", 0, "hi")]


def test_calls_of_a_turn_have_ids_of_their_own(tokenizer: Tokenizer):
    two = TO_TOOLS + OPEN_CALL + "<|close|>call<|sep|>" + '<|open|>call tool="u" index="2"<|sep|><|close|>call<|sep|>'
    turn = parse(two + "<|close|>tools<|sep|>" + END, tokenizer)
    assert turn.tool_calls == (ToolCall("call_1", "t", "{}"), ToolCall("call_2", "u", "{}"))
    parser = X.parser(tokenizer, call_prefix="turn7_")
    parser.feed(ids_of(two, tokenizer))
    assert [call.id for call in parser.finish().tool_calls] == ["turn7_1", "turn7_2"]


def codes(turn: ParsedTurn) -> list[str]:
    return [error.split(":")[0] for error in turn.errors]


@pytest.mark.parametrize(
    "kind, text, arguments, expected",
    [
        ("number", "42", '{"k": 42}', []),
        ("number", " 1e3\n", '{"k": 1e3}', []),
        ("number", "fourty", '{"k": "fourty"}', ["bad_value"]),
        ("number", "true", '{"k": "true"}', ["bad_value"]),
        ("number", "NaN", '{"k": "NaN"}', ["bad_value"]),
        ("number", "1e999", '{"k": "1e999"}', ["bad_value"]),
        ("number", "", '{"k": ""}', ["bad_value"]),
        ("boolean", "true", '{"k": true}', []),
        ("boolean", "True", '{"k": "True"}', ["bad_value"]),
        ("null", "null", '{"k": null}', []),
        ("object", '{"a": [1]}', '{"k": {"a": [1]}}', []),
        ("object", "[1]", '{"k": "[1]"}', ["bad_value"]),
        ("array", "[1, 2", '{"k": "[1, 2"}', ["bad_value"]),
        ("string", "42", '{"k": "42"}', []),
        ("date", "today", '{"k": "today"}', ["bad_type"]),
    ],
)
def test_arguments_are_rebuilt_by_their_type(tokenizer: Tokenizer, kind: str, text: str, arguments: str, expected):
    whole = TO_TOOLS + OPEN_CALL + ARGUMENT.format("k", kind, text) + "<|close|>call<|sep|><|close|>tools<|sep|>" + END
    turn = parse(whole, tokenizer)
    assert turn.tool_calls[0].arguments == arguments
    assert turn.tool_calls[0].parsed() == json.loads(arguments)
    assert codes(turn) == expected
    assert turn.complete


JSON_CALL = TO_TOOLS + OPEN_CALL + '<|open|>json type="object"<|sep|>{}<|close|>json<|sep|><|close|>call<|sep|>'


@pytest.mark.parametrize(
    "text, expected",
    [('{"a": 1}', []), ('{"a": ', ["bad_json"]), ("[1]", ["not_an_object"]), ("[" * 100000, ["bad_json"])],
)
def test_raw_json_arguments_are_kept_as_they_are(tokenizer: Tokenizer, text: str, expected: list[str]):
    turn = parse(JSON_CALL.replace("{}", text) + "<|close|>tools<|sep|>" + END, tokenizer)
    assert turn.tool_calls[0].arguments == text
    assert codes(turn) == expected


THOUGHT = "plan<|close|>think<|sep|>"
TO_ANSWER = "<|close|>think<|sep|>"
RESPONSE = "<|open|>response<|sep|>said<|close|>response<|sep|>"
ANSWER = TO_ANSWER + RESPONSE


@pytest.mark.parametrize(
    "text, reasoning, content, expected",
    [
        (THOUGHT + RESPONSE + END, "plan", "said", []),
        ("plan" + RESPONSE + END, "plan", "said", ["unclosed_think"]),
        ("plan<|close|>think<|sep|>lost" + RESPONSE + END, "plan", "said", ["stray_text"]),
        (THOUGHT + RESPONSE + "<|end_of_msg|>", "plan", "said", ["unclosed_message"]),
        ("plan<|end_of_msg|>", "plan", "", ["unclosed_message", "unclosed_think"]),
        (THOUGHT + END, "plan", "", ["missing_response"]),
        ("plan<|close|>response<|sep|> on" + ANSWER + END, "plan on", "said", ["unexpected_close"]),
        ("a<|open|>b<|sep|>c" + ANSWER + END, "ac", "said", ["unexpected_element"]),
        ("a<|open|>b c" + ANSWER + END, "a", "said", ["cut_tag"]),
        ("a<|open|>b c<|sep|>" + ANSWER + END, "a", "said", ["bad_tag"]),
        ("a<|sep|>b[BOS]c" + ANSWER + END, "abc", "said",
         ["unexpected_separator", "unexpected_special"]),
        ("a" + ANSWER + RESPONSE + END, "a", "saidsaid", ["reopened"]),
        ("a" + ANSWER + "<|open|>think<|sep|>b<|close|>think<|sep|>" + END, "ab", "said", ["reopened"]),
        ("a" + ANSWER + "[EOS]", "a", "said", ["ended_by_eos"]),
        ("a" + ANSWER + END + "more<|sep|>", "a", "said", ["after_end", "after_end"]),
        ("a" + ANSWER
         + '<|close|>message<|sep|><|open|>message role="user"<|sep|>x<|end_of_msg|>',
         "a", "said", ["unexpected_element", "stray_text"]),
    ],
)  # fmt: skip
def test_every_fault_has_its_code(tokenizer: Tokenizer, text: str, reasoning: str, content: str, expected: list[str]):
    turn = parse(text, tokenizer)
    assert (turn.reasoning, turn.content, codes(turn)) == (reasoning, content, expected)


CALLS_AFTER = '<|open|>call tool="t" index="1"<|sep|><|close|>call<|sep|>'


@pytest.mark.parametrize(
    "text, names, expected",
    [
        ("a<|open|>tools<|sep|>" + CALLS_AFTER + "<|close|>tools<|sep|>" + END, ["t"],
         ["unclosed_think", "missing_response"]),
        ("a" + ANSWER + CALLS_AFTER + END, ["t"], ["call_outside_tools"]),
        (TO_TOOLS + CALLS_AFTER + CALLS_AFTER + "<|close|>tools<|sep|>" + END, ["t", "t"], ["bad_index"]),
        (TO_TOOLS + "<|open|>call<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" + END, [""],
         ["call_without_tool", "bad_index"]),
        (TO_TOOLS + "x" + CALLS_AFTER + "<|close|>tools<|sep|>" + END, ["t"], ["stray_text"]),
        (TO_TOOLS + OPEN_CALL + "<|close|>tools<|sep|>" + END, ["t"], ["unclosed_call"]),
        (TO_TOOLS + OPEN_CALL, ["t"], ["unclosed_call"]),
        (TO_TOOLS + OPEN_CALL + ARGUMENT.format("k", "null", "null") + '<|open|>json type="object"<|sep|>{}'
         "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" + END, ["t"], ["refused_argument"]),
    ],
)  # fmt: skip
def test_faults_around_calls(tokenizer: Tokenizer, text: str, names: list[str], expected: list[str]):
    turn = parse(text, tokenizer)
    assert ([call.name for call in turn.tool_calls], codes(turn)) == (names, expected)


@pytest.mark.parametrize(
    "cut",
    [
        '<|open|>argument key="k" type="string"<|sep|>par',
        '<|open|>argument key="k" type="number"<|sep|>4',
        '<|open|>argument key="k" type="number"<|sep|>4}',
        ARGUMENT.format("k", "string", "a"),
    ],
)
def test_a_call_that_was_cut_does_not_parse(tokenizer: Tokenizer, cut: str):
    turn = parse(TO_TOOLS + OPEN_CALL + cut, tokenizer)
    assert not turn.complete
    assert codes(turn) == ["unclosed_call"]
    with pytest.raises(MalformedCall, match="bad_json"):
        turn.tool_calls[0].parsed()


def test_a_thought_cut_by_the_length_limit_is_no_error_and_not_complete(tokenizer: Tokenizer):
    assert parse("thinking", tokenizer) == ParsedTurn("thinking", "", (), (), False)
    assert parse("answer", tokenizer, thinking=False) == ParsedTurn("", "answer", (), (), False)
