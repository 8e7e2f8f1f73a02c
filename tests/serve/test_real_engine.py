"""What the server answers equals what the engine gives in the process: a real random-weight model, greedily."""

from __future__ import annotations

import anthropic
import openai
import pytest

from overland.chat import XTML, Message, Tokenizer, ToolSpec
from overland.engine import Budget, Engine, Sampling
from overland.model import Decoder

from .conftest import BUDGET
from .harness import WEATHER

TOOL = ToolSpec("weather", "Weather.", WEATHER)
USER = Message("user", "Weather in Paris?")


def in_process(model: Decoder, tokenizer: Tokenizer, effort: str, max_tokens: int) -> tuple[list[int], list[float]]:
    engine, template = Engine(model), XTML()
    engine.token_limit = tokenizer.vocab_size  # as the server: the rest of the vocabulary is padding
    close = tuple(template.think_close_ids(tokenizer))
    budget = Budget(BUDGET, close[0], close) if effort == "low" else None
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, stop_ids=template.stop_ids(tokenizer))
    generation = engine.submit(template.prompt_ids([USER], tokenizer, [TOOL], effort), sampling, budget)
    engine.run([generation])
    return generation.ids, generation.logprobs


@pytest.mark.parametrize("effort", ["low", "max"])
@pytest.mark.parametrize("stream", [False, True])
def test_greedy_ids_over_openai_are_the_engines(
    url: str, model: Decoder, tokenizer: Tokenizer, effort: str, stream: bool
) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    answer = client.chat.completions.create(
        model="tiny",
        messages=[USER.to_openai()],
        tools=[TOOL.to_openai()],
        temperature=0,
        max_tokens=24,
        reasoning_effort=effort,
        logprobs=True,
        stream=stream,
        extra_body={"return_token_ids": True},
    )
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    ids = [token for choice in choices for token in choice.model_extra.get("token_ids", [])]
    logprobs = [entry.logprob for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    expected_ids, expected_logprobs = in_process(model, tokenizer, effort, 24)
    assert ids == expected_ids
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-5)


def test_greedy_text_over_anthropic_is_the_engines(url: str, model: Decoder, tokenizer: Tokenizer) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
    message = client.messages.create(
        model="tiny",
        max_tokens=24,
        extra_body={"temperature": 0},  # the newest client no longer names it
        messages=[{"role": "user", "content": USER.content}],
        tools=[{"name": TOOL.name, "description": TOOL.description, "input_schema": TOOL.parameters}],
        output_config={"effort": "low"},
    )
    parser = XTML().parser(tokenizer)
    parser.feed(in_process(model, tokenizer, "low", 24)[0])
    turn = parser.finish()
    said = {block.type: getattr(block, block.type) for block in message.content if block.type in ("thinking", "text")}
    assert said == {name: text for name, text in (("thinking", turn.reasoning), ("text", turn.content)) if text}
    assert message.usage.output_tokens_details.thinking_tokens == BUDGET
