"""Every wrong request gets a 4xx in its API's own form that names the field, and the engine is never asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from overland.chat import Message, Tokenizer

from .harness import KEY_VARIABLE, MODEL, Served, serving

USER = {"role": "user", "content": "Hi"}


def call(key: str) -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def calling(*keys: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(key) for key in keys]}


def tool(parameters: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


RESULT = {"role": "tool", "tool_call_id": "a", "content": "1"}
CHAT = [
    ("messages", {"messages": []}),
    ("messages", {"messages": None}),
    ("messages.0.role", {"messages": [{"role": "robot", "content": "Hi"}]}),
    ("messages.0.content", {"messages": [{"role": "user", "content": 3}]}),
    ("messages.0.content", {"messages": [{"role": "user"}]}),
    ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
    ("messages.1", {"messages": [USER, RESULT]}),
    ("messages.2", {"messages": [USER, calling("b"), RESULT]}),
    ("messages.3", {"messages": [USER, calling("a"), USER, RESULT]}),
    ("messages.1", {"messages": [USER, calling("a", "a"), RESULT]}),
    ("messages.3", {"messages": [USER, calling("a"), RESULT, RESULT]}),
    ("messages.2.tool_call_id", {"messages": [USER, calling("a"), {"role": "tool", "content": "1"}]}),
    ("messages.1", {"messages": [USER, {"role": "assistant", "content": "Well"}]}),
    ("messages.1.content", {"messages": [USER, {"role": "assistant"}, USER]}),
    ("tools.0.function.parameters.type", {"tools": tool({"type": "elephant"})}),
    ("tools.0.function.parameters.type", {"tools": tool({"type": "array"})}),
    ("tools.0.function.parameters", {"tools": tool("text")}),
    ("tools.0.function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools.1.function.parameters", {"tools": tool({}) * 2}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": tool({}), "tool_choice": {"type": "function", "function": {"name": "g"}}}),
    ("tool_choice", {"tool_choice": "sometimes"}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.5}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": -5}),
    ("thinking_token_budget", {"thinking_token_budget": -1}),
    ("reasoning_effort", {"reasoning_effort": "extreme"}),
    ("n", {"n": 0}),
    ("n", {"n": 1000}),
    ("seed", {"seed": 2**70}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": ["x"] * 17}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("frequency_penalty", {"frequency_penalty": 2.5}),
    ("presence_penalty", {"presence_penalty": "much"}),
    ("min_p", {"min_p": 1.5}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": {"1000000": 1}}),
    ("logit_bias", {"logit_bias": {"3": 101}}),
    ("response_format.type", {"response_format": {"type": "yaml"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    (
        "response_format.json_schema.schema.type",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "elephant"}}}},
    ),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"regex": "(("}}),
    (
        "tool_choice",
        {
            "tools": tool({}),
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
        },
    ),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("model", {"model": None}),
]
RESULT_BLOCK = {"type": "tool_result", "tool_use_id": "a", "content": "1"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
MESSAGES = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": -1}),
    ("messages", {"messages": []}),
    ("messages.0.role", {"messages": [{"role": "tool", "content": "Hi"}]}),
    ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [{"type": "document", "title": "a"}]}]}),
    ("messages.0.content.0.text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    ("messages.0.content.0", {"messages": [{"role": "user", "content": [RESULT_BLOCK]}]}),
    ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [USE]}]}),
    ("messages.1", {"messages": [USER, {"role": "assistant", "content": [USE, USE]}]}),
    ("messages.1", {"messages": [USER, {"role": "assistant", "content": "Well"}]}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": -1}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 50}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
    ("thinking.type", {"thinking": {"type": "deep"}}),
    ("output_config.effort", {"output_config": {"effort": "none"}}),
    ("tools.0.input_schema.type", {"tools": [{"name": "f", "input_schema": {"type": "elephant"}}]}),
    ("tools.0.input_schema", {"tools": [{"name": "f"}]}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice.name", {"tool_choice": {"type": "tool"}, "tools": [{"name": "f", "input_schema": {}}]}),
    ("temperature", {"temperature": 9}),
    ("stop_sequences", {"stop_sequences": [""]}),
]


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer) -> Iterator[Served]:
    with serving(tokenizer, context_length=600) as one:
        yield one


def post(served: Served, path: str, body: Any, **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{served.url}{path}", content=content, **options)


@pytest.mark.parametrize(("field", "wrong"), CHAT)
def test_a_wrong_chat_completion_names_its_field(shared: Served, field: str, wrong: dict[str, Any]) -> None:
    response = post(shared, "/v1/chat/completions", {"model": MODEL, "messages": [USER], **wrong})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert error["message"].startswith(field)
    assert not shared.engine.seen


def test_a_number_too_large_for_json_names_its_field(shared: Served) -> None:
    body = b'{"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1e999}'
    response = post(shared, "/v1/chat/completions", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize(("field", "wrong"), MESSAGES)
def test_a_wrong_message_names_its_field(shared: Served, field: str, wrong: dict[str, Any]) -> None:
    response = post(shared, "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": [USER], **wrong})
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(field)
    assert body["request_id"] == response.headers["request-id"]
    assert not shared.engine.seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"model": NaN}', b"\xff\xfe", b"[" * 100_000, b"[" * 300 + b"]" * 300, b'"text"'],
    ids=range(9),
)
def test_a_body_that_is_no_request(shared: Served, path: str, body: bytes) -> None:
    response = post(shared, path, body)
    assert response.status_code == 400
    assert "Traceback" not in response.text
    assert "/site-packages/" not in response.text


def test_a_prompt_longer_than_the_context_is_refused_before_any_work(shared: Served) -> None:
    long = {"role": "user", "content": "qz " * 700}
    body = {"model": MODEL, "messages": [long], "max_tokens": 5}
    response = post(shared, "/v1/chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "600" in response.json()["error"]["message"]
    response = post(shared, "/v1/messages", body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert not shared.engine.seen


def test_half_an_emoji_is_no_reason_to_refuse_a_conversation(tokenizer: Tokenizer) -> None:
    with serving(tokenizer) as served:
        served.say(Message("assistant", "Hm."))
        body = b'{"model": "scripted", "messages": [{"role": "user", "content": "cut \\ud83d"}]}'
        assert post(served, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"] == "Hm."
        lost = b'{"model": "scripted", "messages": [{"role": "tool", "tool_call_id": "\\ud83d", "content": ""}]}'
        assert post(served, "/v1/chat/completions", lost).status_code == 400


def test_an_unknown_model_is_not_found(shared: Served) -> None:
    client = openai.OpenAI(base_url=f"{shared.url}/v1", api_key="unused", max_retries=0)
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=[USER])
    assert caught.value.code == "model_not_found"
    other = anthropic.Anthropic(base_url=shared.url, api_key="unused", max_retries=0)
    with pytest.raises(anthropic.NotFoundError) as found:
        other.messages.create(model="claude", max_tokens=5, messages=[USER])
    assert found.value.body["error"]["type"] == "not_found_error"
    assert MODEL in str(found.value)


def test_an_unknown_route_and_a_wrong_method(shared: Served) -> None:
    assert httpx.get(f"{shared.url}/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{shared.url}/v1/nothing").status_code == 404
    response = httpx.get(f"{shared.url}/v1/messages")
    assert response.status_code == 405
    assert response.json()["type"] == "error"


@pytest.mark.parametrize("told", [True, False])
def test_a_body_over_the_limit_is_refused(tokenizer: Tokenizer, told: bool) -> None:
    with serving(tokenizer, max_request_bytes=2000) as served:
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * 3000}]}).encode()
        content = body if told else iter([body[:1000], body[1000:]])
        for path, key in (("/v1/chat/completions", "error"), ("/v1/messages", "error")):
            content = body if told else iter([body[:1000], body[1000:]])
            response = httpx.post(f"{served.url}{path}", content=content)
            assert response.status_code == 413
            assert response.json()[key]["type"] == "request_too_large"


def test_a_key_is_asked_for_where_one_is_set(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with serving(tokenizer) as served:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "sesam"}, {"x-api-key": "s\xe9same"}):
            raw = {key: value.encode("latin-1") for key, value in headers.items()}
            response = post(served, "/v1/messages", {}, headers=raw)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
        assert post(served, "/v1/chat/completions", {}).json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"{served.url}/health").status_code == 200
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="sesame", max_retries=0).models.list()
        anthropic.Anthropic(base_url=served.url, api_key="sesame", max_retries=0).models.list()


def test_a_full_server_says_when_to_come_back(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, max_in_flight=1, retry_after_seconds=7) as served:
        served.engine.pause_after = 1
        body = {"model": MODEL, "messages": [USER], "max_tokens": 50}
        for path, kind in (("/v1/chat/completions", "rate_limit_exceeded"), ("/v1/messages", "rate_limit_error")):
            with httpx.stream("POST", f"{served.url}{path}", json={**body, "stream": True}) as held:
                chunks = held.iter_bytes()
                next(chunks)
                response = post(served, path, body)
                assert httpx.get(f"{served.url}/ready").status_code == 503
            assert response.status_code == 429
            assert response.headers["retry-after"] == "7"
            assert response.json()["error"]["type"] == kind
            assert served.engine.cancelled.wait(10)
            served.engine.cancelled.clear()
            served.wait_idle()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_engine_is_told_without_its_insides(tokenizer: Tokenizer, path: str, stream: bool) -> None:
    with serving(tokenizer) as served:
        served.engine.broken = True
        response = post(served, path, {"model": MODEL, "max_tokens": 5, "messages": [USER], "stream": stream})
        assert response.status_code == (200 if stream else 500)
        assert "internal error" in response.text
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        if stream and path == "/v1/messages":
            assert "event: error" in response.text
