"""A hundred clients at once with leavers and slow readers; nonsense of every kind: nothing leaks, nothing is a 500."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import given, settings

from benchmarks.serve_soak import soak
from overland.chat import XTML, Tokenizer

from .harness import MODEL, Served, serving

POSTS = (
    "/v1/chat/completions",
    "/v1/chat/completions/tokens",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)


def test_a_hundred_streams_with_leavers_and_slow_readers_leave_nothing_behind(tokenizer: Tokenizer) -> None:
    made = soak(tokenizer, XTML(), clients=100, rounds=2, max_batch=16)
    for one in made["rounds"]:
        assert one["wrong"] == 0, one["examples"]
        assert one["statuses"] == {200: 100}
        assert one["finished"] + one["left_early"] == 100
    for one in made["left_over"]:
        for name in ("in_flight", "registered", "queues", "running", "waiting", "row_bytes", "swapped_bytes"):
            assert one[name] == 0, (name, one)
    assert made["left_over"][1]["generations"] <= made["left_over"][0]["generations"] + 2
    assert made["left_over"][1]["rss_mib"] < made["left_over"][0]["rss_mib"] + 60


GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    "/v1/chat/completions/tokens": {"messages": [{"role": "user", "content": "Hi"}], "tokens": [5], "max_tokens": 3},
    "/v1/completions": {"prompt": [5, 6], "max_tokens": 3},
    "/v1/responses": {"input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 3},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
}
VALUES: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, "", "x", "\ud800", "\u0000", [], [[]], [None], {}, {"type": "x"}, {"": {}},
    [{"type": "text"}], "9" * 5000, [0] * 50, {"role": "user"}, {"type": "function"},
]  # fmt: skip
FIELDS = [
    *("model", "messages", "prompt", "input", "tokens", "tools", "tool_choice", "max_tokens", "max_output_tokens"),
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_sequences", "logprobs", "top_logprobs"),
    *("logit_bias", "response_format", "structured_outputs", "reasoning", "reasoning_effort", "thinking", "system"),
    *("output_config", "instructions", "text", "include", "metadata", "previous_response_id", "stream", "cache_salt"),
    *("stream_options", "echo", "frequency_penalty", "presence_penalty", "role", "content", "type"),
]


def mutated(value: Any, rng: random.Random) -> Any:
    """A request with something in it replaced, added, doubled or taken away."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value)) if rng.random() < 0.6 else rng.choice(FIELDS)
        changed = dict(value)
        if key in changed and rng.random() < 0.15:
            del changed[key]
        else:
            changed[key] = mutated(changed.get(key), rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(value[at], rng), *value[at + rng.randrange(2) :]]
    return rng.choice(VALUES)


@pytest.fixture
def brief(tokenizer: Tokenizer) -> Iterator[Served]:
    """A server whose answers are short, whatever is asked."""
    with serving(tokenizer, context_length=400, max_tokens=3, max_choices=3) as one:
        yield one


def test_no_mutated_body_is_an_internal_error(brief: Served) -> None:
    rng = random.Random(0)
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=brief.url, timeout=120) as client:
        for number in range(400):
            path = rng.choice(POSTS)
            body: Any = {"model": MODEL, **GOOD[path]}
            for _ in range(rng.randint(1, 3)):
                body = mutated(body, rng)
            data = json.dumps(body).encode()
            if number % 10 == 0:  # and bytes that are no JSON at all
                at = rng.randrange(len(data) + 1)
                data = data[:at] + rng.randbytes(rng.randrange(8)) + data[at + rng.randrange(4) :]
            answer = client.post(path, content=data)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (path, data[:500], answer.text[:500])
            if answer.status_code >= 400:
                assert "error" in answer.json()
    assert statuses.get(200, 0) > 20
    assert statuses.get(400, 0) > 100


def test_whatever_the_document_allows_is_answered(brief: Served) -> None:
    """schemathesis draws requests from the OpenAPI document, valid ones and broken ones."""
    document = schemathesis.openapi.from_url(f"{brief.url}/openapi.json")
    asked = 0
    for path in POSTS:

        @settings(max_examples=12, database=None)
        @given(case=document[path]["POST"].as_strategy())
        def one(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            if isinstance(case.body, dict):
                case.body["model"] = MODEL  # else nearly all end at an unknown model
                case.body["max_tokens"] = 2
            answer = case.call(timeout=120)
            assert answer.status_code < 500 or answer.status_code in (503, 504, 529), answer.text[:500]

        one()
    assert asked >= 8 * len(POSTS)


def test_a_system_prompt_of_ten_megabytes_is_refused_in_time(served: Served) -> None:
    for path, field in (("/v1/chat/completions", "messages"), ("/v1/messages", "messages")):
        huge = {**GOOD[path], "model": MODEL, "messages": [{"role": "system", "content": "x" * 10_000_000}]}
        answer = httpx.post(f"{served.url}{path}", json=huge, timeout=30)
        assert answer.status_code == 413, field


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_prompt_beyond_the_context_is_refused_by_every_api(served: Served, path: str) -> None:
    body = {"model": MODEL, **GOOD[path]}
    body["input" if "input" in body else "messages"] = [{"role": "user", "content": "word " * 5000}]
    answer = httpx.post(f"{served.url}{path}", json=body, timeout=30)
    assert answer.status_code == 400
    assert "context" in answer.json()["error"]["message"]
