"""Leaving clients, meters, ports and signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from overland.chat import Message, Tokenizer
from overland.errors import OverlandError
from overland.serve import ServeSection, run

from .harness import MODEL, Served, serving

USER = {"role": "user", "content": "Hi"}
PATHS = ["/v1/chat/completions", "/v1/messages"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_generation(served: Served, path: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": [USER], "max_tokens": 100_000, "stream": stream}
    with httpx.Client(base_url=served.url) as client:
        if stream:
            with client.stream("POST", path, json=body) as response:
                next(response.iter_bytes())
        else:
            sock = socket.create_connection(httpx.URL(served.url).netloc.decode().split(":"))
            data = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
            sock.sendall(head.encode() + data)
            assert served.engine.started.wait(10)
            sock.close()
    assert served.engine.cancelled.wait(10)
    served.wait_idle()


def meters(served: Served) -> dict[str, float]:
    text = httpx.get(f"{served.url}/metrics").text
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_meters_count_what_was_served(served: Served) -> None:
    turn = Message("assistant", "Yes.", "Hm.")
    served.say(turn)
    httpx.post(f"{served.url}/v1/chat/completions", json={"model": MODEL, "messages": [USER]})
    seen = meters(served)
    assert seen["vllm:prompt_tokens_total"] == len(served.prompts()[0])
    assert seen["vllm:generation_tokens_total"] == len(served.spell(turn))
    assert seen["overland:thinking_tokens_total"] == 3
    assert seen["vllm:request_success_total"] == 1
    assert seen["vllm:time_to_first_token_seconds_count"] == 1
    assert seen["vllm:inter_token_latency_seconds_count"] == len(served.spell(turn)) - 1
    assert seen["vllm:num_requests_running"] == seen["vllm:num_requests_waiting"] == 0


def test_a_tiers_budget_is_enforced_and_counted(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, think_budget_low=4) as served:
        body = {"model": MODEL, "messages": [USER], "reasoning_effort": "low", "max_tokens": 30}
        served.engine.script.append(tokenizer.encode("a") * 100)
        response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
        assert response.headers["x-overland-thinking-budget"] == "4"
        assert response.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
        assert response.json()["choices"][0]["message"]["content"]
        seen = meters(served)
        assert seen["overland:thinking_budget_exhausted_total"] == 1
        assert seen["overland:thinking_budget_tokens"] == 4
        served.engine.script.append(tokenizer.encode("a") * 100)  # a request may ask for less, never for more
        httpx.post(f"{served.url}/v1/chat/completions", json={**body, "thinking_token_budget": 9})
        assert served.engine.seen[-1].budget.limit == 4


def test_an_answer_keeps_the_tokens_reserved_for_it(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, answer_reserve=10) as served:
        served.engine.script.append(tokenizer.encode("a") * 100)
        body = {"model": MODEL, "messages": [USER], "max_tokens": 40}
        response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
        assert len(response.json()["choices"][0]["message"]["content"]) == 10


def test_a_port_in_use_is_named(tokenizer: Tokenizer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OverlandError, match=rf"port {port} on 127\.0\.0\.1 is in use.*--port 0"):
            run(None, tokenizer, None, model_name=MODEL, settings=ServeSection(port=port))


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_running_answer_finish_and_exits_with_success(sig: signal.Signals) -> None:
    with _Process(drain=30) as (process, url, paced):
        body = {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": 12}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(sig)
            assert process.stdout.readline() == "draining\n"
            paced()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_what_outlives_the_drain_deadline_is_told_so() -> None:
    with _Process(drain=1) as (process, url, _):
        body = {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": 12}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "cancelled"
        assert process.wait(20) == 0


class _Process:
    """A server process of the scripted model; its tokens after the third wait for a line on stdin."""

    def __init__(self, drain: int) -> None:
        command = [sys.executable, "-m", "serve.paced_server", str(drain)]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> tuple[subprocess.Popen[str], str, Callable[[], None]]:
        process = self._process
        watchdog = threading.Timer(240, process.kill)
        watchdog.daemon = True
        watchdog.start()
        line = process.stdout.readline()
        assert " is ready at http://127.0.0.1:" in line, line + process.stderr.read()

        def paced() -> None:
            process.stdin.write("go\n")
            process.stdin.flush()

        return process, line.split()[-1], paced

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
