"""The official `openai` client against a real server: what it sends is taken, what it reads is what the model said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from overland.chat import Message, ToolCall

from .harness import ANSWER_TURN, CALL_TURN, MODEL, WEATHER, Served

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": WEATHER}}]
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Paris and Zürich?"}]


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


def test_a_tool_call_and_its_answer(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN, ANSWER_TURN)
    first = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == CALL_TURN.content
    assert choice.message.reasoning == choice.message.reasoning_content == CALL_TURN.reasoning
    calls = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris", "days": 3}, {"city": "Zürich"}]
    assert len({call.id for call in calls}) == 2
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18°C"} for call in calls]
    history = [*ASK, choice.message, *results]
    second = client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == ANSWER_TURN.content
    assert second.choices[0].message.tool_calls is None


def test_usage_says_how_much_was_thinking_and_how_much_was_cached(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN, ANSWER_TURN)
    first = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    prompt, answer = served.prompts()[0], served.spell(CALL_TURN)
    assert first.usage.prompt_tokens == len(prompt)
    assert first.usage.completion_tokens == len(answer)
    assert first.usage.total_tokens == len(prompt) + len(answer)
    assert first.usage.completion_tokens_details.reasoning_tokens == len(CALL_TURN.reasoning.encode())
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    message = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18°C"} for call in message.tool_calls]
    second = client.chat.completions.create(model=MODEL, messages=[*ASK, message, *results], tools=TOOLS)
    assert second.usage.prompt_tokens_details.cached_tokens == len(prompt) + len(answer) - 1


def test_a_stream_says_what_the_whole_answer_says(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN, CALL_TURN)
    whole = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.content == whole.choices[0].message.content
    calls, expected = final.choices[0].message.tool_calls, whole.choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.function.name, c.function.arguments) for c in expected
    ]
    reasoning = "".join(c.choices[0].delta.model_extra.get("reasoning", "") for c in chunks if c.choices)
    assert reasoning == CALL_TURN.reasoning
    assert chunks[-1].choices == []
    assert chunks[-1].usage.model_dump() == whole.usage.model_dump() | {
        "prompt_tokens_details": chunks[-1].usage.prompt_tokens_details.model_dump()
    }
    assert len({chunk.id for chunk in chunks}) == 1
    assert sum(bool(c.choices and c.choices[0].delta.tool_calls) for c in chunks) > 10  # arguments come in pieces


async def test_many_async_streams_at_once_keep_their_own_words(served: Served) -> None:
    served.say(*[Message("assistant", "same words", "") for _ in range(8)])
    client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)

    async def one(number: int) -> str:
        messages = [{"role": "user", "content": f"question {number}"}]
        stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    assert await asyncio.gather(*[one(number) for number in range(8)]) == ["same words"] * 8
    await client.close()


def test_several_choices_have_their_own_seeds_and_words(served: Served, client: openai.OpenAI) -> None:
    served.say(Message("assistant", "one"), Message("assistant", "two"))
    answer = client.chat.completions.create(model=MODEL, messages=ASK, n=2, seed=7)
    assert [choice.message.content for choice in answer.choices] == ["one", "two"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [generation.sampling.seed for generation in served.engine.seen] == [7, 8]
    served.say(Message("assistant", "one"), Message("assistant", "two"))
    texts = ["", ""]
    for chunk in client.chat.completions.create(model=MODEL, messages=ASK, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["one", "two"]


def test_sampling_parameters_reach_the_engine(served: Served, client: openai.OpenAI) -> None:
    served.say(ANSWER_TURN)
    client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0.25, top_p=0.5, seed=3, max_completion_tokens=99
    )
    sampling = served.engine.seen[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.25, 0.5, 3, 99)
    assert served.tokenizer.special("<|end_of_msg|>") in sampling.stop_ids


def test_a_length_limit_ends_with_length(served: Served, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_is_not_shown(served: Served, client: openai.OpenAI, stream: bool) -> None:
    served.say(Message("assistant", "one two END three", "END of thought"))
    answer = client.chat.completions.create(model=MODEL, messages=ASK, stop=["END", "zzz"], stream=stream)
    if stream:
        chunks = list(answer)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two "
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert answer.choices[0].message.content == "one two "
        assert answer.choices[0].finish_reason == "stop"
    assert served.engine.seen[0].finish_reason == "cancelled"


def test_what_trainers_ask_for_lines_up(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN)
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, top_logprobs=0, extra_body={"return_token_ids": True}
    )
    choice = answer.choices[0]
    assert answer.model_extra["prompt_token_ids"] == choice.model_extra["prompt_token_ids"] == served.prompts()[0]
    assert choice.model_extra["token_ids"] == served.spell(CALL_TURN)
    assert choice.model_extra["forced_tokens"] == [False] * len(served.spell(CALL_TURN))
    assert [entry.logprob for entry in choice.logprobs.content] == [-0.5] * len(served.spell(CALL_TURN))
    assert b"".join(bytes(entry.bytes) for entry in choice.logprobs.content) == served.tokenizer.bytes_of(
        served.spell(CALL_TURN)
    )


def test_streamed_token_ids_and_logprobs_are_those_of_the_whole_answer(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN)
    ids: list[int] = []
    logprobs: list[float] = []
    for chunk in client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, stream=True, extra_body={"return_token_ids": True}
    ):
        for choice in chunk.choices:
            ids += choice.model_extra.get("token_ids", [])
            logprobs += [entry.logprob for entry in choice.logprobs.content] if choice.logprobs else []
    assert ids == served.spell(CALL_TURN)
    assert logprobs == [-0.5] * len(ids)


@pytest.mark.parametrize(
    ("asked", "tier"),
    [("minimal", "low"), ("low", "low"), ("medium", "high"), ("high", "high"), ("xhigh", "max"), ("max", "max")],
)
def test_every_effort_name_maps_to_a_tier(served: Served, client: openai.OpenAI, asked: str, tier: str) -> None:
    served.say(ANSWER_TURN)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK, reasoning_effort=asked)
    assert raw.headers["x-overland-effort"] == tier
    prompt = served.tokenizer.decode(served.prompts()[0])
    assert f"thinking_effort={tier}" in prompt


def test_effort_none_closes_the_thinking_at_once(served: Served, client: openai.OpenAI) -> None:
    served.engine.script.append([*served.tokenizer.encode("Hi"), *served.spell(Message("assistant", ""))[6:]])
    answer = client.chat.completions.create(model=MODEL, messages=ASK, reasoning_effort="none", max_tokens=40)
    assert answer.choices[0].message.reasoning is None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert served.engine.seen[0].budget.limit == 0


IN_WORDS = CALL_TURN.content + "".join(
    f'\n{{"name": "weather", "arguments": {call.arguments}}}' for call in CALL_TURN.tool_calls
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("offered", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_a_call_that_was_not_offered_is_told_in_words(
    served: Served, client: openai.OpenAI, stream: bool, offered: dict[str, Any]
) -> None:
    served.say(CALL_TURN, ANSWER_TURN)
    if stream:
        chunks = list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True, **offered))
        content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        choice = client.chat.completions.create(model=MODEL, messages=ASK, **offered).choices[0]
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"
        content = choice.message.content
    assert content == IN_WORDS
    assert served.engine.constrained == [bool(offered)]  # a model that is shown tools is held to the choice
    again = [*ASK, {"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
    client.chat.completions.create(model=MODEL, messages=again, **offered)
    first, second = served.prompts()
    assert second[: len(first)] == first
    assert second[len(first) :][: len(served.spell(CALL_TURN))] == served.spell(CALL_TURN)


def test_a_required_or_named_tool_is_asked_for(served: Served, client: openai.OpenAI) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        served.say(CALL_TURN)
        client.chat.completions.create(model=MODEL, messages=ASK, tools=[*TOOLS, other], tool_choice=choice)
    required, named = (served.tokenizer.decode(prompt) for prompt in served.prompts())
    assert "MUST call tools" in required
    assert "MUST call tools" in named
    assert '"other"' in required
    assert '"other"' in named  # all tools stay in the prompt, so that its beginning stays the same
    assert served.engine.constrained == [True, True]


def test_parallel_calls_can_be_refused(served: Served, client: openai.OpenAI) -> None:
    served.say(CALL_TURN)
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_malformed_call_reaches_the_client_as_it_was_said(served: Served, client: openai.OpenAI) -> None:
    served.say(Message("assistant", "", "", (ToolCall("", "weather", '{"city": '),)))
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS)
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"city": '
    assert answer.choices[0].model_extra["parse_errors"]


def test_models_tell_the_context_length(served: Served, client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert models[0].model_extra["max_model_len"] == 4096
    assert client.models.retrieve(MODEL).id == MODEL
