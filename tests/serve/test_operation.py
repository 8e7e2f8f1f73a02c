"""Admission, deadlines, keys, the effort controller, and what the metrics say of all that."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from overland.chat import Tokenizer
from overland.errors import UsageError
from overland.serve import ServeSection
from overland.serve.admission import Admission, Load
from overland.serve.door import known_keys
from overland.serve.effort_controller import EffortController, Signals
from overland.serve.errors import ApiError
from overland.serve.metrics import Metrics

from .harness import ANSWER_TURN, MODEL, Served, serving


def admission(**settings: Any) -> Admission:
    return Admission(ServeSection(**settings), Metrics("m"))


def test_long_requests_leave_room_for_short_ones() -> None:
    door = admission(max_tokens_in_flight=1000, short_tokens=100, long_share=0.5)
    long = [door.enter(Load(200, 50)) for _ in range(2)]
    with pytest.raises(ApiError, match="long requests") as refused:
        door.enter(Load(200, 50))
    assert (refused.value.status, refused.value.retry_after) == (429, 2)
    short = [door.enter(Load(50, 50)) for _ in range(5)]
    with pytest.raises(ApiError, match="1000 of 1000"):
        door.enter(Load(1, 1))
    assert (door.priority(Load(50, 50)), door.priority(Load(200, 50))) == (0, 1)
    for leave in [*long, *short]:
        leave()
    assert (door.in_flight, door.tokens) == (0, {"short": 0, "long": 0})
    with pytest.raises(ApiError, match="at once") as never:
        door.enter(Load(600, 1))
    assert never.value.status == 400  # it could never come in: waiting would not help


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_effort_goes_down_under_pressure_and_up_again_with_hysteresis() -> None:
    clock = Hand()
    settings = ServeSection(
        effort_controller=True, effort_raise_seconds=5, effort_lower_seconds=30, default_effort="max"
    )
    controller = EffortController(settings, clock)

    def look(seconds: float, **signals: float) -> int:
        clock.now += seconds
        return controller.look(Signals(**signals))

    assert look(1, cache_usage=0.95) == 0  # not yet for long enough
    assert look(3, cache_usage=0.5) == 0
    assert look(1, cache_usage=0.95) == 0
    assert look(5, cache_usage=0.95) == 1
    assert (controller.default_effort(), controller.budget(None), controller.budget(100)) == ("high", 2048, 50)
    assert controller.reason == "cache"
    assert look(4, first_token_seconds=9.0) == 1
    assert look(1, first_token_seconds=9.0) == 2
    assert controller.default_effort() == "low"
    for _ in range(20):
        assert look(10, cache_usage=0.8) == 2  # neither pressed nor calm
    assert look(10, cache_usage=0.1) == 2
    assert look(29, cache_usage=0.1) == 2
    assert look(1, cache_usage=0.1) == 1
    assert look(30, cache_usage=0.1) == 0
    assert (controller.default_effort(), controller.budget(None), controller.reason) == ("max", None, "")


@pytest.fixture
def pressed(tokenizer: Tokenizer) -> Any:
    with serving(tokenizer, effort_controller=True, think_budget_max=64) as one:
        one.generator.controller.level = 1
        one.generator.controller.reason = "cache"
        yield one


def test_a_request_that_names_its_effort_is_never_touched(pressed: Served) -> None:
    client = openai.OpenAI(base_url=f"{pressed.url}/v1", api_key="unused", max_retries=0)

    def headers(**options: Any) -> Any:
        pressed.say(ANSWER_TURN)
        ask: Any = [{"role": "user", "content": "Hi"}]
        return client.chat.completions.with_raw_response.create(model=MODEL, messages=ask, **options).headers

    lowered = headers()
    assert (lowered["x-overland-effort"], lowered["x-overland-effort-reduced"]) == ("high", "1")
    named = headers(reasoning_effort="max")
    assert (named["x-overland-effort"], named["x-overland-thinking-budget"]) == ("max", "64")
    assert "x-overland-effort-reduced" not in named
    budgeted = headers(extra_body={"thinking_token_budget": 60})
    assert budgeted["x-overland-thinking-budget"] == "60"
    meters = httpx.get(f"{pressed.url}/metrics").text
    assert 'overland:effort_reduced_total{model_name="scripted",reason="cache"} 1.0' in meters
    assert 'overland:effort_level{model_name="scripted"} 1.0' in meters


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_is_told_in_the_apis_own_form(served: Served, stream: bool) -> None:
    served.engine.pause_after = 1
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream, "max_tokens": 50}
    timed = {"x-request-timeout": "0.2"}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=ask, headers=timed)
    assert answer.status_code == (200 if stream else 504)
    assert "the request's time was over" in answer.text
    served.wait_idle()
    for wrong in ("soon", "-1", "nan"):
        refused = httpx.post(f"{served.url}/v1/chat/completions", json=ask, headers={"x-request-timeout": wrong})
        assert refused.status_code == 400


def test_drain_is_overloaded_in_anthropics_terms(served: Served) -> None:
    served.generator.admission.draining = True
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    answer = httpx.post(f"{served.url}/v1/messages", json=ask)
    assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")
    assert answer.headers["retry-after"] == "2"
    assert httpx.post(f"{served.url}/v1/chat/completions", json=ask).status_code == 503
    assert httpx.get(f"{served.url}/ready").status_code == 503
    client = anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0)
    with pytest.raises(anthropic.APIStatusError):
        client.messages.create(**ask)


def test_any_of_several_hashed_keys_opens_and_nothing_but_probes_is_open(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    lines = [f"{hashlib.sha256(key.encode()).hexdigest()} {key}" for key in ("alice", "bob")]
    file.write_text("# who may come in\n" + "\n".join(lines) + "\n")
    with serving(tokenizer, api_keys_file=str(file)) as one:

        def status(path: str, **headers: str) -> int:
            return httpx.get(f"{one.url}{path}", headers=headers).status_code

        assert [status("/v1/models", authorization=f"Bearer {key}") for key in ("alice", "bob", "eve")] == [
            200,
            200,
            401,
        ]
        assert status("/v1/models", **{"x-api-key": "bob"}) == 200
        assert status("/v1/models") == status("/openapi.json") == status("/tokenize") == 401
        assert status("/health") == status("/ready") == status("/metrics") == 200
    file.write_text("alice\n")
    with pytest.raises(UsageError, match="line 1"):
        known_keys("", str(file))


def test_vllms_names_are_there(served: Served) -> None:
    served.say(ANSWER_TURN)
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low"}
    assert httpx.post(f"{served.url}/v1/chat/completions", json=ask).status_code == 200
    text = httpx.get(f"{served.url}/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_success_total",
        'overland:time_to_first_response_token_seconds_count{effort="low",model_name="scripted"} 1.0',
        'overland:memory_bytes{kind="used"',
    ):
        assert f"\n{name}" in text, name
