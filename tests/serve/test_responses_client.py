"""The Responses API through the official client: whole and streamed, sync and async, and a history sent back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from overland.chat import Message, ToolCall

from .harness import ANSWER_TURN, CALL_TURN, MODEL, WEATHER, Served

TOOLS = [{"type": "function", "name": "weather", "description": "Weather.", "parameters": WEATHER}]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


def results(response: Any, *texts: str) -> list[dict[str, Any]]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": text}
        for call, text in zip(calls, texts, strict=True)
    ]


def test_a_response_has_reasoning_text_and_calls(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN)
    response = client.responses.create(model=MODEL, input="Weather?", tools=TOOLS, instructions="Be short.")
    assert response.status == "completed"
    assert kinds(response) == ["reasoning", "message", "function_call", "function_call"]
    assert response.output[0].content[0].text == CALL_TURN.reasoning
    assert response.output_text == CALL_TURN.content
    assert [json.loads(item.arguments) for item in response.output[2:]] == [c.parsed() for c in CALL_TURN.tool_calls]
    assert response.usage.output_tokens_details.reasoning_tokens == len(CALL_TURN.reasoning)
    assert response.usage.total_tokens == response.usage.input_tokens + len(served.spell(CALL_TURN))
    assert "Be short." in served.tokenizer.decode(served.prompts()[0])


@pytest.mark.parametrize("way", ["items", "previous", "sealed", "without reasoning"])
def test_a_history_sent_back_in_any_way_goes_on_from_the_sampled_ids(
    served: Served, client: openai.OpenAI, way: str
) -> None:
    served.say(CALL_TURN, ANSWER_TURN)
    ask = [{"role": "user", "content": "Weather?"}]
    options: dict[str, Any] = {"include": ["reasoning.encrypted_content"], "store": False} if way == "sealed" else {}
    first = client.responses.create(model=MODEL, input=ask, tools=TOOLS, **options)
    outputs = results(first, "sun", "rain")
    if way == "previous":
        second = client.responses.create(model=MODEL, input=outputs, previous_response_id=first.id, tools=TOOLS)
    else:
        items = [item.model_dump(exclude_none=True) for item in first.output]
        if way == "sealed":
            assert items[0].pop("content")
        if way == "without reasoning":
            items = items[1:]
        second = client.responses.create(model=MODEL, input=[*ask, *items, *outputs], tools=TOOLS)
    before = [*served.prompts()[0], *served.spell(CALL_TURN)]
    assert served.prompts()[1][: len(before)] == before
    assert second.usage.input_tokens_details.cached_tokens == len(before) - 1  # all that the engine has run
    assert second.output_text == ANSWER_TURN.content


def test_a_stream_says_what_the_whole_response_says(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN)
    events = list(client.responses.create(model=MODEL, input="Weather?", tools=TOOLS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1].response
    assert events[-1].type == "response.completed"
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in final.output]
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [item.id for item in final.output]
    for kind, item_type, text in (
        ("response.reasoning_text.delta", "reasoning", CALL_TURN.reasoning),
        ("response.output_text.delta", "message", CALL_TURN.content),
    ):
        ids = {item.id for item in final.output if item.type == item_type}
        assert "".join(event.delta for event in events if event.type == kind) == text
        assert {event.item_id for event in events if event.type == kind} == ids
    for call in final.output[2:]:
        pieces = [
            e.delta for e in events if e.type == "response.function_call_arguments.delta" and e.item_id == call.id
        ]
        assert len(pieces) > 1
        assert "".join(pieces) == call.arguments
    kept = client.responses.retrieve(final.id)
    assert kept.to_dict() == final.to_dict()


def test_a_call_that_was_not_offered_is_told_in_words(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN, CALL_TURN)
    response = client.responses.create(model=MODEL, input="Weather?")
    assert kinds(response) == ["reasoning", "message"]
    assert response.output_text.count('{"name": "weather", "arguments": ') == 2
    refused = client.responses.create(model=MODEL, input="Weather?", tools=TOOLS, tool_choice="none")
    assert kinds(refused) == ["reasoning", "message"]


def test_the_clients_own_accumulator_reads_the_stream(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN)
    with client.responses.stream(model=MODEL, input="Weather?", tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == CALL_TURN.content
    assert kinds(final) == ["reasoning", "message", "function_call", "function_call"]


async def test_the_async_client(served: Served) -> None:
    served.say(ANSWER_TURN, ANSWER_TURN)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        whole = await client.responses.create(model=MODEL, input="Hi")
        stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
    assert text == whole.output_text == ANSWER_TURN.content


def test_a_length_limit_makes_it_incomplete(served: Served, client: openai.OpenAI) -> None:
    for stream in (False, True):
        answer = client.responses.create(model=MODEL, input="Hi", max_output_tokens=20, stream=stream)
        response = list(answer)[-1].response if stream else answer
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[-1].status == "incomplete"


def test_a_custom_tool_takes_text(served: Served, client: openai.OpenAI) -> None:
    call = Message("assistant", "", "", (ToolCall("", "patch", '{"input": "*** Begin \\"x\\"\\n"}'),))
    served.say(call, call, ANSWER_TURN)
    tools = [{"type": "custom", "name": "patch", "description": "Apply a patch."}]
    events = list(client.responses.create(model=MODEL, input="Go", tools=tools, stream=True))
    first = client.responses.create(model=MODEL, input="Go", tools=tools)
    assert first.output[-1].type == "custom_tool_call"
    assert first.output[-1].input == '*** Begin "x"\n'
    assert [e.input for e in events if e.type == "response.custom_tool_call_input.done"] == [first.output[-1].input]
    output = {"type": "custom_tool_call_output", "call_id": first.output[-1].call_id, "output": "ok"}
    client.responses.create(model=MODEL, input=[output], previous_response_id=first.id, tools=tools)
    before = [*served.prompts()[1], *served.spell(call)]
    assert served.prompts()[2][: len(before)] == before


def test_logprobs_come_where_asked_for(served: Served, client: openai.OpenAI) -> None:
    served.say(ANSWER_TURN)
    response = client.responses.create(model=MODEL, input="Hi", include=["message.output_text.logprobs"])
    said = response.output[-1].content[0]
    assert (
        "".join(bytes(entry.bytes).decode("latin1") for entry in said.logprobs).encode("latin1").decode() == said.text
    )


def test_effort_and_form_reach_the_prompt(served: Served, client: openai.OpenAI) -> None:
    served.say(Message("assistant", '{"a": 1}'))
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    client.responses.create(model=MODEL, input="Hi", reasoning={"effort": "low"}, text={"format": form})
    prompt = served.tokenizer.decode(served.prompts()[0])
    assert "thinking_effort=low" in prompt
    assert "must match the following schema" in prompt
    assert served.engine.constrained == [True]


def test_stored_responses_are_listed_and_deleted(served: Served, client: openai.OpenAI) -> None:
    served.say(ANSWER_TURN)
    response = client.responses.create(model=MODEL, input="Hi")
    assert [
        item.content[0].text if isinstance(item.content, list) else item.content
        for item in client.responses.input_items.list(response.id)
    ] == ["Hi"]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    counted = client.responses.input_tokens.count(model=MODEL, input="Hi")
    assert counted.input_tokens == len(served.prompts()[0])


WRONG = [
    ("input", {"input": []}),
    ("input.0.role", {"input": [{"content": "Hi"}]}),
    ("input.0.type", {"input": [{"type": "telepathy"}]}),
    ("input.0.content.0.type", {"input": [{"role": "user", "content": [{"type": "input_video"}]}]}),
    (
        "input.1",
        {"input": [{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "x", "output": ""}]},
    ),
    ("input.0.id", {"input": [{"type": "item_reference", "id": "gone"}]}),
    ("previous_response_id", {"previous_response_id": "resp_gone"}),
    ("background", {"background": True}),
    ("tools.0.type", {"tools": [{"type": "web_search"}]}),
    ("tool_choice", {"tool_choice": {"type": "function", "name": "none"}}),
    ("reasoning.effort", {"reasoning": {"effort": "huge"}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("metadata", {"metadata": {str(i): "" for i in range(17)}}),
]


def test_a_wrong_request_names_its_field(served: Served) -> None:
    for field, wrong in WRONG:
        body = {"model": MODEL, "input": "Hi", **wrong}
        response = httpx.post(f"{served.url}/v1/responses", json=body)
        assert response.status_code == 400, (field, response.text)
        assert response.json()["error"]["param"] == field
    assert not served.prompts()
