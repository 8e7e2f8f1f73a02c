"""Whole histories sent back by the official clients to a random-weight model: the prefix cache hits to the last token.

A random model's samples are hardly ever what encoding their text would give, so a hit shows that sampled ids are kept.
A grammar makes its turns whole; their words stay random.
"""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from overland.chat import Tokenizer

SYSTEM = "You are a helpful assistant with a long enough system prompt. " * 4
FORM = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_chat_completions_go_on_from_the_last_token(url: str, tokenizer: Tokenizer) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Weather?"}]
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}
    before: list[int] = []
    foreign = 0
    for turn in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=messages,
            response_format=form,
            reasoning_effort="low",
            seed=turn,
            max_tokens=200,
            extra_body={"return_token_ids": True},
        )
        prompt = answer.model_extra["prompt_token_ids"]
        ids = answer.choices[0].model_extra["token_ids"]
        assert prompt[: len(before)] == before
        assert answer.usage.prompt_tokens_details.cached_tokens >= len(before) - 1  # all that the engine has run
        assert answer.choices[0].finish_reason == "stop"
        said = answer.choices[0].message
        foreign += tokenizer.encode(said.reasoning) != ids[: answer.usage.completion_tokens_details.reasoning_tokens]
        messages += [said.model_dump(exclude_none=True), {"role": "user", "content": "And there?"}]
        before = [*prompt, *ids]
    assert foreign  # the samples were really not what encoding gives


def test_messages_go_on_from_the_last_token(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    form: Any = {"effort": "low", "format": {"type": "json_schema", "schema": FORM}}
    seen = 0
    for _ in range(3):
        with client.messages.stream(
            model="tiny", max_tokens=200, system=SYSTEM, messages=messages, output_config=form
        ) as stream:
            answer = stream.get_final_message()
        usage = answer.usage
        assert usage.cache_read_input_tokens >= seen - 1
        seen = usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens
        assert answer.stop_reason == "end_turn"
        assert [block.type for block in answer.content] == ["thinking", "text"]
        messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
        messages.append({"role": "user", "content": "And there?"})


def test_responses_go_on_from_the_last_token(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    previous, seen = None, 0
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": FORM}}
    for said in ("Weather?", "And there?", "And here?"):
        response = client.responses.create(
            model="tiny",
            instructions=SYSTEM,
            input=said,
            previous_response_id=previous,
            reasoning={"effort": "low"},
            text=form,
            max_output_tokens=200,
        )
        assert response.usage.input_tokens_details.cached_tokens >= seen - 1
        assert response.status == "completed"
        seen = response.usage.total_tokens
        previous = response.id
