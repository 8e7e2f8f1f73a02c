"""The policy that speaks through the official clients: what comes back is what the policy in the process says."""

from __future__ import annotations

import asyncio

import pytest
import torch

from overland.agent import ClientPolicy, LocalPolicy, Tool, run_loop
from overland.agent.turn import Turn
from overland.chat import XTML, Message, Tokenizer, ToolSpec
from overland.engine import AsyncEngine, Engine, Sampling
from overland.errors import OverlandError
from overland.model import Decoder, preset
from overland.serve import ServeSection, background, create_app

from .harness import ANSWER_TURN, MODEL, WEATHER, Served, byte_ids

TOOL = ToolSpec("weather", "Weather.", WEATHER)
TALK = [Message("user", "Weather in Paris?")]
GREEDY = Sampling(temperature=0.0, max_tokens=24)
LONG = Sampling(temperature=0.0, max_tokens=200)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Decoder:
    torch.manual_seed(0)
    return Decoder(preset("nano", vocab_size=-(-tokenizer.vocab_size // 32) * 32)).eval()


async def ask(policy: ClientPolicy) -> Turn:
    try:
        return await policy.respond(TALK, [TOOL], "low", GREEDY)
    finally:
        await policy.close()


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_turn_through_the_official_client_is_the_turn_of_the_process(
    model: Decoder, tokenizer: Tokenizer, api: str
) -> None:
    settings = ServeSection(port=0, think_budget_low=6)
    own = LocalPolicy(Engine(model), tokenizer, think_budget={"low": 6})
    expected = asyncio.run(own.respond(TALK, [TOOL], "low", GREEDY))
    app = create_app(AsyncEngine(Engine(model)), tokenizer, XTML(), model_name="tiny", settings=settings)
    with background(app, settings) as url:
        turn = asyncio.run(ask(ClientPolicy(f"{url}/v1", "tiny", api)))
    assert turn.message.content == expected.message.content
    assert turn.message.reasoning == expected.message.reasoning
    assert turn.usage.completion_tokens == expected.usage.completion_tokens == 24


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_what_the_server_refuses_is_one_line_with_its_reason(model: Decoder, tokenizer: Tokenizer, api: str) -> None:
    settings = ServeSection(port=0)
    app = create_app(AsyncEngine(Engine(model)), tokenizer, XTML(), model_name="tiny", settings=settings)
    with background(app, settings) as url, pytest.raises(OverlandError, match="other"):
        asyncio.run(ask(ClientPolicy(f"{url}/v1", "other", api)))


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_turn_that_breaks_the_format_is_told_so_as_in_the_process(served: Served, api: str) -> None:
    tokenizer, end = served.tokenizer, served.tokenizer.special("<|end_of_msg|>")
    broken = [*(byte_ids(tokenizer)[byte] for byte in b"hm"), end]  # its thinking is never closed
    served.engine.script.append(broken)
    served.say(ANSWER_TURN)
    policy = ClientPolicy(f"{served.url}/v1", MODEL, api)
    tool = Tool.of(weather)
    try:
        done = await run_loop(policy, TALK, [tool], effort="low", sampling=LONG)
    finally:
        await policy.close()
    assert (done.stop, done.answer) == ("answered", ANSWER_TURN.content)
    assert done.malformed == {"unreadable": 1}
    told = done.messages[2]
    assert told.role == "user"
    assert "unclosed_think" in told.content
    first, second = served.prompts()
    assert second == XTML().bridge([*first, *broken], [told], tokenizer, calls=())  # what LocalPolicy asks next


async def weather(city: str) -> str:
    """Weather."""
    return city


async def test_a_turn_ended_as_a_document_ends_cannot_go_on(served: Served) -> None:
    served.engine.script.append([served.tokenizer.special("[EOS]")])
    policy = ClientPolicy(f"{served.url}/v1", MODEL, "openai")
    try:
        done = await run_loop(policy, TALK, [Tool.of(weather)], effort="low", sampling=LONG)
    finally:
        await policy.close()
    assert done.stop == "malformed"  # as in the process
