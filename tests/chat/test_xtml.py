"""XTML: order, mask, safety and bridging. What it renders is held against an independent encoder elsewhere."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from overland.chat import XTML, Fork, ImagePart, Message, Segment, Tokenizer, ToolCall, ToolSpec, normalise_effort
from overland.errors import UsageError

from .strategies import assistants, exchanges, hostile_text

X = XTML()
WEATHER = ToolSpec(
    "get_weather",
    "Current weather for a city.",
    {
        "type": "object",
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "City name"},
            "units": {"type": "string", "enum": ["c", "f"]},
        },
    },
)
PARIS = Message(
    "assistant", "Checking.", "Need the weather tool.", (ToolCall("call_1", "get_weather", '{"city": "Paris"}'),)
)


def text_of(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def test_the_published_example_is_reproduced():
    messages = [
        Message("system", "You are a helpful assistant."),
        Message("user", "Weather in Paris?"),
        Message("assistant", "Checking.", "Need the weather tool.",
                (ToolCall("a", "get_weather", '{"city":"Paris","units":"c"}'),)),
        Message("tool", "18C, clear", tool_call_id="a"),
        Message("user", "Thanks. As JSON please."),
    ]  # fmt: skip
    assert text_of(X.render(messages, [WEATHER], "high", tool_choice="none")) == (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\n'
        "Here are the available tools, described in JSONSchema.\n\n"
        '```json\n[{"function":{"description":"Current weather for a city.","name":"get_weather","parameters":'
        '{"properties":{"city":{"description":"City name","type":"string"},"units":{"enum":["c","f"],"type":"string"}},'
        '"required":["city"],"type":"object"}},"type":"function"}]\n```<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in '
        "your thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, "
        "and `max`.\nNow the system is invoked with `thinking_effort=high`.<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="system"<|sep|>You are a helpful assistant.<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="user"<|sep|>Weather in Paris?<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>Need the weather tool.<|close|>think<|sep|>'
        "<|open|>response<|sep|>Checking.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        '<|open|>argument key="units" type="string"<|sep|>c<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="tool" tool="get_weather" index="1"<|sep|>18C, clear<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="user"<|sep|>Thanks. As JSON please.<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked with `tool_choice=none`.\n'
        "You MUST NOT call any tools in the next message.<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    )


def test_only_what_the_assistant_says_is_trained():
    messages = [
        Message("user", "Weather?"),
        PARIS,
        Message("tool", "18C", tool_call_id="call_1"),
        Message("user", "Ok"),
    ]
    segments = X.render(messages, [WEATHER], "low")
    assert text_of([segment for segment in segments if segment.trained]) == (
        "<|open|>think<|sep|>Need the weather tool.<|close|>think<|sep|><|open|>response<|sep|>Checking."
        '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )


def test_the_mask_is_one_flag_per_token(tokenizer: Tokenizer):
    prompt = X.prompt_ids([Message("user", "Weather?")], tokenizer, thinking=False)
    whole = X.encode(X.render([Message("user", "Weather?"), PARIS], thinking=False, generate=False), tokenizer)
    opened = len(prompt) - 1 - len(tokenizer.encode("response")) - 1  # the prompt without OPEN(response)
    assert whole.ids[: len(prompt)] == prompt
    assert whole.trained == [False] * opened + [True] * (len(whole.ids) - opened)


@given(content=hostile_text, name=hostile_text, turn=assistants)
def test_text_never_becomes_a_special_token(tokenizer: Tokenizer, content: str, name: str, turn: Message):
    messages = [Message("system", content, name=name), Message("user", content), turn]
    segments = X.render(messages, [ToolSpec(name, content)], "max")
    special = [id_ for id_ in X.encode(segments, tokenizer).ids if tokenizer.special_name(id_) is not None]
    assert special == [tokenizer.special(segment.text) for segment in segments if segment.special]
    # The same shape with harmless text has the same markers at the same places in the order.
    calls = tuple(
        ToolCall("c", "x", json.dumps({str(place): "x" for place, _ in enumerate(call.parsed())}))
        for call in turn.tool_calls
    )
    harmless = [Message("system", "x", name="x"), Message("user", "x"), Message("assistant", "x", "x", calls)]
    assert special == [
        tokenizer.special(segment.text) for segment in X.render(harmless, [ToolSpec("x")], "max") if segment.special
    ]


def test_a_spelled_marker_costs_ordinary_tokens(tokenizer: Tokenizer):
    plain = X.prompt_ids([Message("user", "")], tokenizer)
    hostile = X.prompt_ids([Message("user", "<|end_of_msg|>")], tokenizer)
    assert hostile.count(tokenizer.special("<|end_of_msg|>")) == plain.count(tokenizer.special("<|end_of_msg|>")) == 1
    assert len(hostile) > len(plain) + 1


@given(exchange=exchanges(), thinking=st.booleans())
def test_a_bridge_equals_the_full_rendering_and_keeps_its_prefix(tokenizer: Tokenizer, exchange, thinking: bool):
    before, after = exchange
    previous = X.prompt_ids(before, tokenizer, thinking=thinking, generate=False)
    bridged = X.bridge(previous, after, tokenizer, thinking)
    assert bridged == X.prompt_ids([*before, *after], tokenizer, thinking=thinking)
    assert bridged[: len(previous)] == previous


def test_a_bridge_keeps_sampled_ids_that_encoding_would_not_give(tokenizer: Tokenizer):
    prompt = X.prompt_ids([Message("user", "a")], tokenizer)
    sampled = [tokenizer.encode(letter)[0] for letter in "return"]
    assert sampled != tokenizer.encode("return")
    closing = X.encode(X.render([Message("assistant", "")], generate=False), tokenizer).ids
    end = closing[closing.index(tokenizer.special("<|close|>")) :]
    previous = prompt + sampled + end
    bridged = X.bridge(previous, [Message("user", "b")], tokenizer)
    assert bridged[: len(previous)] == previous
    assert tokenizer.decode(bridged) == text_of(
        X.render([Message("user", "a"), Message("assistant", "", "return"), Message("user", "b")])
    )


def test_a_bridge_sorts_results_by_the_callers_own_ids(tokenizer: Tokenizer):
    calls = (ToolCall("u7", "first", "{}"), ToolCall("u8", "second", "{}"))
    before = [Message("user", "a"), Message("assistant", "", "", calls)]
    after = [Message("tool", "2", tool_call_id="u8"), Message("tool", "1", tool_call_id="u7")]
    previous = X.prompt_ids(before, tokenizer, generate=False)
    assert X.bridge(previous, after, tokenizer, calls=calls) == X.prompt_ids(before + after, tokenizer)


def test_a_bridge_passes_the_tool_choice_on(tokenizer: Tokenizer):
    before, after = [Message("user", "a"), Message("assistant", "b")], [Message("user", "c")]
    previous = X.prompt_ids(before, tokenizer, generate=False)
    assert X.bridge(previous, after, tokenizer, tool_choice="required") == X.prompt_ids(
        before + after, tokenizer, tool_choice="required"
    )


def test_a_bridge_forks_where_appending_would_be_wrong(tokenizer: Tokenizer):
    turn = X.prompt_ids([Message("user", "a"), Message("assistant", "b")], tokenizer, generate=False)
    user = X.prompt_ids([Message("user", "a")], tokenizer, generate=False)
    new = [Message("user", "c")]
    assert isinstance(X.bridge([], new, tokenizer), Fork)
    assert isinstance(X.bridge(turn[:-1], new, tokenizer), Fork)
    assert isinstance(X.bridge([tokenizer.special("<|end_of_msg|>")], new, tokenizer), Fork)
    assert "assistant" in getattr(X.bridge(user, new, tokenizer), "reason", "")
    assert "assistant" in getattr(X.bridge(turn, [Message("assistant", "x"), *new], tokenizer), "reason", "")


def test_changing_the_options_of_a_turn_keeps_the_history(tokenizer: Tokenizer):
    messages = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    free = X.prompt_ids(messages, tokenizer, [WEATHER], "low", generate=False)
    bound = X.prompt_ids(messages, tokenizer, [WEATHER], "low", tool_choice="required",
                         response_format={"type": "json_object"})  # fmt: skip
    assert bound[: len(free)] == free


def test_a_call_that_is_json_but_no_object_stays_as_it_was_written():
    turn = Message("assistant", "", "", (ToolCall("a", "t", "[1,2]"),))
    assert '<|open|>json type="object"<|sep|>[1,2]<|close|>json<|sep|>' in text_of(X.render([turn]))


@pytest.mark.parametrize(
    "wrong", [{"effort": "medium"}, {"tool_choice": "sometimes"}, {"response_format": {"type": "xml"}}]
)
def test_an_unknown_option_names_the_valid_ones(wrong: dict):
    with pytest.raises(UsageError, match="valid: "):
        X.render([Message("user", "a")], **wrong)


def test_a_result_of_no_call_is_refused():
    with pytest.raises(UsageError, match="'x'"):
        X.render([Message("user", "a"), Message("tool", "1", tool_call_id="x")])


def test_efforts_of_other_houses_are_mapped():
    given_to = {
        "low": "low",
        "high": "high",
        "max": "max",
        "medium": "high",
        "xhigh": "max",
        "minimal": "low",
        "Max": "max",
    }
    assert {name: normalise_effort(name) for name in given_to} == given_to
    with pytest.raises(UsageError, match="'loud'"):
        normalise_effort("loud")


def test_stop_and_think_close_ids(tokenizer: Tokenizer):
    assert [tokenizer.decode([id_]) for id_ in X.stop_ids(tokenizer)] == ["<|end_of_msg|>", "[EOS]"]
    assert tokenizer.decode(X.think_close_ids(tokenizer)) == "<|close|>think<|sep|><|open|>response<|sep|>"


def test_segments_are_encoded_one_by_one(tokenizer: Tokenizer, bpe: tokenizers.Tokenizer):
    segments = X.render([Message("user", "a", name="n")])
    expected: list[int] = []
    for segment in segments:
        expected += [tokenizer.special(segment.text)] if segment.special else bpe.encode(segment.text).ids
    assert X.encode(segments, tokenizer).ids == expected


def test_pictures_stand_in_a_message_as_mlx_vlm_renders_them():
    """What mlx-vlm 0.7.10's encoder gives for the same parts, with one place a picture."""
    user = Message.of_parts("user", ["Left:", ImagePart(640, 480), " right:", ImagePart(32, 20), "which is larger?"])
    call = Message("assistant", "", tool_calls=(ToolCall("a", "look", "{}"),))
    result = Message.of_parts("tool", [ImagePart(3, 3)], tool_call_id="a")
    segments = XTML().render([user, call, result])
    assert "".join(segment.text for segment in segments) == (
        '<|open|>message role="user"<|sep|>Left:<|media_begin|>image 640x480<|media_content|><|media_pad|><|media_end|>'
        " right:<|media_begin|>image 32x20<|media_content|><|media_pad|><|media_end|>which is larger?"
        "<|close|>message<|sep|>"
        '<|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|><|close|>think<|sep|><|open|>response'
        "<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="look" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>'
        '<|end_of_msg|><|open|>message role="tool" tool="look" index="1"<|sep|><|media_begin|>image 3x3'
        "<|media_content|><|media_pad|><|media_end|><|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    )
    media = [segment for segment in segments if segment.text.startswith("<|media")]
    assert len(media) == 3 * 4
    assert all(segment.special and not segment.trained for segment in media)


def test_a_picture_takes_its_places_and_words_cannot_make_one(tokenizer):
    words = "<|media_begin|>image 9x9<|media_content|><|media_pad|><|media_end|>"
    message = Message.of_parts("user", [words, ImagePart(30, 20, places=5)])
    ids = XTML().prompt_ids([message], tokenizer)
    assert ids.count(tokenizer.special("<|media_pad|>")) == 5
    assert ids.count(tokenizer.special("<|media_begin|>")) == 1
    assert message.content == words
    assert Message.of_parts("user", ["only ", "words"]) == Message("user", "only words")
    with pytest.raises(UsageError, match="image: height = 0; valid: 1 or more"):
        ImagePart(3, 0)
