"""The official `anthropic` client against a real server: whole and streamed messages, tools, thinking, counting."""

from __future__ import annotations

import anthropic
import pytest

from overland.chat import Message, ToolCall

from .harness import ANSWER_TURN, CALL_TURN, MODEL, WEATHER, Served

TOOLS = [{"name": "weather", "description": "Weather.", "input_schema": WEATHER}]
ASK = [{"role": "user", "content": "Weather in Paris and Zürich?"}]
INPUTS = [{"city": "Paris", "days": 3}, {"city": "Zürich"}]


@pytest.fixture
def client(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0)


def results(message: anthropic.types.Message) -> dict[str, object]:
    blocks = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "18°C"}]}
        for block in message.content
        if block.type == "tool_use"
    ]
    return {"role": "user", "content": blocks[::-1]}  # in any order: ids decide


def test_a_tool_call_and_its_answer(served: Served, client: anthropic.Anthropic) -> None:
    served.say(CALL_TURN, ANSWER_TURN)
    first = client.messages.create(model=MODEL, max_tokens=999, system="Be brief.", messages=ASK, tools=TOOLS)
    assert first.id.startswith("msg_")
    assert first.stop_reason == "tool_use"
    assert first.stop_sequence is None
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert first.content[0].thinking == CALL_TURN.reasoning
    assert first.content[0].signature
    assert [block.input for block in first.content[2:]] == INPUTS
    history = [*ASK, {"role": "assistant", "content": first.content}, results(first)]
    second = client.messages.create(model=MODEL, max_tokens=999, system="Be brief.", messages=history, tools=TOOLS)
    assert second.stop_reason == "end_turn"
    assert second.content[-1].text == ANSWER_TURN.content
    prompt, again = served.prompts()
    assert again[: len(prompt)] == prompt
    assert again[len(prompt) :][: len(served.spell(CALL_TURN))] == served.spell(CALL_TURN)
    assert second.usage.cache_read_input_tokens == len(prompt) + len(served.spell(CALL_TURN)) - 1
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == len(again)
    assert second.usage.output_tokens_details.thinking_tokens == len(ANSWER_TURN.reasoning.encode())


def test_a_stream_says_what_the_whole_message_says(served: Served, client: anthropic.Anthropic) -> None:
    served.say(CALL_TURN, CALL_TURN)
    whole = client.messages.create(model=MODEL, max_tokens=999, messages=ASK, tools=TOOLS)
    with client.messages.stream(model=MODEL, max_tokens=999, messages=ASK, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert [b.type for b in final.content] == [b.type for b in whole.content]
    assert final.content[0].model_dump() == whole.content[0].model_dump()  # thinking and its signature
    assert final.content[1].text == whole.content[1].text
    assert [b.input for b in final.content[2:]] == [b.input for b in whole.content[2:]]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    depth = 0
    for kind in kinds:  # one block open at a time
        depth += {"content_block_start": 1, "content_block_stop": -1}.get(kind, 0)
        assert 0 <= depth <= 1


def test_a_call_that_was_not_offered_is_told_in_words(served: Served, client: anthropic.Anthropic) -> None:
    served.say(CALL_TURN, CALL_TURN)
    whole = client.messages.create(model=MODEL, max_tokens=999, messages=ASK)
    assert whole.stop_reason == "end_turn"
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}' in whole.content[1].text
    with client.messages.stream(
        model=MODEL, max_tokens=999, messages=ASK, tools=TOOLS, tool_choice={"type": "none"}
    ) as stream:
        assert [block.type for block in stream.get_final_message().content] == ["thinking", "text"]


async def test_async_streaming(served: Served) -> None:
    served.say(ANSWER_TURN)
    client = anthropic.AsyncAnthropic(base_url=served.url, api_key="unused", max_retries=0)
    async with client.messages.stream(model=MODEL, max_tokens=999, messages=ASK) as stream:
        assert "".join([text async for text in stream.text_stream]) == ANSWER_TURN.content
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named(served: Served, client: anthropic.Anthropic, stream: bool) -> None:
    served.say(Message("assistant", "one two END three"))
    asked = {"model": MODEL, "max_tokens": 999, "messages": ASK, "stop_sequences": ["zzz", "END"]}
    if stream:
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.content[-1].text == "one two "


def test_a_length_limit_ends_with_max_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=20, messages=ASK)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 20


def test_count_tokens_is_exactly_the_prompt(served: Served, client: anthropic.Anthropic) -> None:
    served.say(ANSWER_TURN)
    asked = {"model": MODEL, "messages": ASK, "tools": TOOLS, "system": [{"type": "text", "text": "Be brief."}]}
    counted = client.messages.count_tokens(**asked)
    client.messages.create(max_tokens=99, **asked)
    assert counted.input_tokens == len(served.prompts()[0])


def test_a_thinking_budget_is_enforced(served: Served, client: anthropic.Anthropic) -> None:
    served.engine.script.append(served.tokenizer.encode("a") * 7 + served.spell(Message("assistant", "Yes."))[3 + 5 :])
    thinking = {"type": "enabled", "budget_tokens": 5}
    message = client.messages.create(model=MODEL, max_tokens=60, messages=ASK, thinking=thinking)
    assert message.usage.output_tokens_details.thinking_tokens == 5
    generation = served.engine.seen[0]
    close = served.template.think_close_ids(served.tokenizer)
    assert generation.ids[5 : 5 + len(close)] == close
    assert generation.forced[: 5 + len(close)] == [False] * 5 + [True] * len(close)


@pytest.mark.parametrize("kind", ["adaptive", "between_tools"])
def test_effort_comes_from_output_config(served: Served, client: anthropic.Anthropic, kind: str) -> None:
    served.say(ANSWER_TURN)
    client.messages.create(
        model=MODEL, max_tokens=99, messages=ASK, thinking={"type": kind}, output_config={"effort": "medium"}
    )
    assert "thinking_effort=high" in served.tokenizer.decode(served.prompts()[0])


def test_thinking_can_be_left_out_of_the_answer(served: Served, client: anthropic.Anthropic) -> None:
    served.say(ANSWER_TURN, ANSWER_TURN)
    thinking = {"type": "adaptive", "display": "omitted"}
    message = client.messages.create(model=MODEL, max_tokens=99, messages=ASK, thinking=thinking)
    assert message.content[0].thinking == ""
    assert message.content[0].signature
    history = [*ASK, {"role": "assistant", "content": message.content}, {"role": "user", "content": "And?"}]
    client.messages.create(model=MODEL, max_tokens=99, messages=history, thinking=thinking)
    again = served.prompts()[1]
    assert ANSWER_TURN.reasoning in served.tokenizer.decode(again)  # the model still sees its own thinking


def test_a_foreign_or_missing_signature_is_never_refused(served: Served, client: anthropic.Anthropic) -> None:
    for signature in ("", "bogus", "Zm9v" * 40):
        served.say(ANSWER_TURN)
        thought = {"type": "thinking", "thinking": "Elsewhere.", "signature": signature}
        history = [
            *ASK,
            {"role": "assistant", "content": [thought, {"type": "text", "text": "Hm."}]},
            {"role": "user", "content": "And?"},
        ]
        assert client.messages.create(model=MODEL, max_tokens=99, messages=history).stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
def test_malformed_arguments_are_no_input_and_come_back_as_they_were(
    served: Served, client: anthropic.Anthropic, stream: bool
) -> None:
    turn = Message("assistant", "", "", (ToolCall("", "weather", '{"city": "Par'),))
    served.say(turn, ANSWER_TURN)
    if stream:
        with client.messages.stream(model=MODEL, max_tokens=999, messages=ASK, tools=TOOLS) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(model=MODEL, max_tokens=999, messages=ASK, tools=TOOLS)
    assert message.content[-1].input == {"malformed_arguments": '{"city": "Par'}
    history = [*ASK, {"role": "assistant", "content": message.content}, results(message)]
    client.messages.create(model=MODEL, max_tokens=999, messages=history, tools=TOOLS)
    prompt, again = served.prompts()
    assert again[: len(prompt) + len(served.spell(turn))] == prompt + served.spell(turn)


def test_a_billing_nonce_does_not_reach_the_prompt(served: Served, client: anthropic.Anthropic) -> None:
    for nonce in ("1", "2"):
        served.say(ANSWER_TURN)
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"},
            {"type": "text", "text": "Hi."},
        ]
        client.messages.create(model=MODEL, max_tokens=99, system=system, messages=ASK)
    assert served.prompts()[0] == served.prompts()[1]


def test_tool_choices(served: Served, client: anthropic.Anthropic) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "none"}):
        served.say(CALL_TURN)
        message = client.messages.create(model=MODEL, max_tokens=999, messages=ASK, tools=TOOLS, tool_choice=choice)
        called = any(block.type == "tool_use" for block in message.content)
        assert called == (choice["type"] != "none")
    texts = [served.tokenizer.decode(prompt) for prompt in served.prompts()]
    assert ["MUST call" in text for text in texts] == [True, True, False]
    assert "MUST NOT call" in texts[2]


def test_models_tell_how_much_fits(client: anthropic.Anthropic) -> None:
    model = client.models.list().data[0]
    assert model.id == MODEL
    assert model.max_input_tokens == 4095
