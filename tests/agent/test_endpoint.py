"""What is sent to an endpoint and what is made of its answers. The other side is a function of the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from overland.agent import ContextFull, EndpointPolicy, Tool, run_loop
from overland.chat import Message, ToolCall
from overland.errors import OverlandError, UsageError

from .scripted import Sampling as Bare


class Sampling(Bare):
    temperature = 1.0
    top_p = 1.0
    seed = 7


TASK = [Message("system", "be brief"), Message("user", "two plus two?")]


async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


class Server:
    """Answers in order and keeps the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def body(self, number: int) -> dict[str, Any]:
        return dict(json.loads(self.requests[number].content))


def policy(server: Callable[[httpx.Request], httpx.Response], api: str = "openai", **options: Any) -> EndpointPolicy:
    transport = httpx.MockTransport(server)
    return EndpointPolicy("http://model.test/v1", "m", api, "secret-key", transport=transport, **options)


def completion(
    content: str | None, calls: list[tuple[str, str, str]] = (), finish: str = "stop", **message: Any
) -> dict:  # type: ignore[assignment]
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {
        "model": "m-1",
        "choices": [
            {
                "finish_reason": finish,
                "message": {
                    "role": "assistant",
                    "content": content,
                    **message,
                    **({"tool_calls": made} if made else {}),
                },
            }
        ],
        "usage": {"prompt_tokens": 30, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
    }


async def test_openai_loop_sends_every_reasoning_back():
    server = Server(
        completion(None, [("c1", "add", '{"a": 2, "b": 2}')], "tool_calls", reasoning_content="let me see"),
        completion(None, [("c2", "add", '{"a": 4, "b": 0}')], "tool_calls"),
        completion("4"),
    )
    done = await run_loop(policy(server), TASK, [Tool.of(add)], effort="medium", sampling=Sampling())
    assert (done.stop, done.answer) == ("answered", "4")
    assert done.usage.reasoning_tokens == 12
    last = server.body(2)
    assert [m["role"] for m in last["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert last["messages"][2]["reasoning_content"] == "let me see"
    assert last["messages"][4]["reasoning_content"] == ""  # the key is there even when empty
    assert last["messages"][3]["tool_call_id"] == "c1"
    assert last["reasoning_effort"] == "high"
    assert last["tools"][0]["function"]["name"] == "add"
    assert server.requests[0].headers["authorization"] == "Bearer secret-key"


SIGNED = {"type": "thinking", "thinking": "hm…", "signature": "AbC/+="}
REDACTED = {"type": "redacted_thinking", "data": "x" * 50}


def said(*blocks: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 9}
    return {
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": list(blocks),
        "stop_reason": stop,
        "usage": usage,
    }


async def test_anthropic_thinking_blocks_go_back_byte_for_byte():
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2, "b": 2}}
    first = [SIGNED, REDACTED, use, {**use, "id": "t2"}]
    server = Server(said(*first, stop="tool_use"), said({"type": "text", "text": "4"}))
    done = await run_loop(policy(server, "anthropic"), TASK, [Tool.of(add)], sampling=Sampling())
    assert done.answer == "4"
    assert done.turns[0].message.reasoning == "hm…"
    assert done.turns[0].usage.prompt_tokens == 25
    assert done.turns[0].usage.cached_tokens == 20
    body = server.body(1)
    assert str(server.requests[0].url) == "http://model.test/v1/messages"
    assert body["system"] == "be brief"
    assert body["output_config"] == {"effort": "high"}
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == first
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["t1", "t2"]


async def test_a_conversation_loaded_from_disk_keeps_its_signatures():
    server = Server(said(SIGNED, {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 1}}), said())
    first = await policy(server, "anthropic").respond(TASK, [], "high", Sampling())
    fresh = policy(server, "anthropic")
    fresh.remember(first)
    await fresh.respond([*TASK, first.message, Message("tool", "2", tool_call_id="t1")], [], "high", Sampling())
    assert server.body(1)["messages"][1]["content"][0] == SIGNED


async def test_foreign_reasoning_is_never_shown_as_text():
    foreign = Message("assistant", "", "my secret thought", (ToolCall("c", "add", '{"a": 1'),))
    server = Server(said({"type": "text", "text": "ok"}))
    await policy(server, "anthropic").respond(
        [*TASK, foreign, Message("tool", "bad", tool_call_id="c")], [], "high", Sampling()
    )
    assert "secret thought" not in server.requests[0].content.decode()
    assert server.body(0)["messages"][1]["content"][0]["input"] == {"malformed_arguments": '{"a": 1'}


async def test_passing_failures_are_tried_again():
    busy = httpx.Response(429, headers={"retry-after": "0"}, text="slow down")
    server = Server(busy, httpx.Response(503, headers={"retry-after": "0"}), completion("ok"))
    assert (await policy(server).respond(TASK, [], "low", Sampling())).message.content == "ok"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "answer", [httpx.Response(401, text="no"), httpx.Response(200, text="<html>"), {}, {"choices": []}]
)
async def test_lasting_failures_are_named_without_the_key(answer: Any):
    with pytest.raises(OverlandError) as caught:
        await policy(Server(answer)).respond(TASK, [], "low", Sampling())
    assert "secret-key" not in str(caught.value)


async def test_a_dead_endpoint_ends_the_episode_as_an_error():
    done = await run_loop(policy(Server(httpx.ConnectError("refused")), retries=0), TASK, [], sampling=Sampling())
    assert done.stop == "error"
    assert "refused" in str(done.error)


async def test_context_errors_carry_the_numbers():
    error = {"error": {"code": "context_length_exceeded", "message": "maximum context length is 4096, got 5000 tokens"}}
    with pytest.raises(ContextFull) as caught:
        await policy(Server(httpx.Response(400, json=error))).respond(TASK, [], "low", Sampling())
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (5000, 4096)


async def test_a_cut_answer_is_a_length_stop():
    done = await run_loop(policy(Server(completion("half", finish="length"))), TASK, [], sampling=Sampling())
    assert done.stop == "length"


@pytest.mark.parametrize(("field", "value"), [("api", "soap"), ("base_url", "model.test")])
def test_wrong_options_are_refused(field: str, value: str):
    with pytest.raises(UsageError, match=field):
        EndpointPolicy(**{"base_url": "http://x", "model": "m", field: value})
