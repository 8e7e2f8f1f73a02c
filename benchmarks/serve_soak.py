"""Many streaming clients at once on loopback, some of whom leave early or read slowly: no leak, no wrong answer.

    python -m benchmarks.serve_soak [--quick] [--clients 1000] [--rounds 2] [--json OUT]

Every client asks one of a few questions greedily; whoever stays to the end must get the ids that an engine of its own
gives. Afterwards nothing may be in flight, no row, page or task left, and memory back where a first round left it. The
model is tiny and in float64, so that an answer does not hang on how sums are rounded; there is no peer: the figures are
this server's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from overland.engine import AsyncEngine, Engine, Sampling
from overland.model import Decoder, DecoderConfig
from overland.serve import ServeSection, background, create_app

QUESTIONS = 12
TOKENS = 24
CONFIG = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "routed_expert_hidden_size": 8,
    "attn_res_block_size": 2,
    "max_position_embeddings": 2048,
    "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "num_heads": 2, "head_dim": 8},
}


@dataclass
class Round:
    """What one round of clients saw."""

    finished: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    first_token_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


def build(tokenizer: Any, seed: int) -> Decoder:
    """A model with weights drawn large enough that its answers differ."""
    torch.manual_seed(seed)
    model = Decoder(DecoderConfig.from_dict({**CONFIG, "vocab_size": tokenizer.vocab_size}))
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value) * (1.5 * value.shape[-1] ** -0.5 if value.ndim > 1 else 1.0))
    return model.double().eval()


async def client(
    port: int, question: int, wanted: list[int], leave_after: int | None, slow: bool, seen: Round, rng: random.Random
) -> None:
    """One streaming completion over a plain socket; leaves after so many events, or reads to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {
        "model": "soak",
        "prompt": prompt(question),
        "temperature": 0,
        "max_tokens": TOKENS,
        "stream": True,
        "return_token_ids": True,
    }
    data = json.dumps(body).encode()
    began = time.perf_counter()
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        seen.statuses[status] += 1
        ids: list[int] = []
        events = 0
        ended = False
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                ended = True
                break
            events += 1
            if events == 1:
                seen.first_token_ms.append(1000 * (time.perf_counter() - began))
            ids += json.loads(line[6:])["choices"][0].get("token_ids", [])
            if leave_after is not None and events >= leave_after:
                seen.left += 1
                return
            if slow:
                await asyncio.sleep(rng.random() * 0.05)
        if status == 200:
            seen.finished += 1
            seen.tokens += len(ids)
            if not ended or ids != wanted:
                seen.wrong.append(f"question {question}: {ids} instead of {wanted}, ended: {ended}")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def prompt(question: int) -> list[int]:
    """A question; all begin alike."""
    return [*(7 + i % 40 for i in range(40)), question, question * 3 % 50]


def answers(model: Decoder, stop_ids: tuple[int, ...]) -> list[list[int]]:
    """What a fresh engine says to each question, alone."""
    out = []
    for question in range(QUESTIONS):
        engine = Engine(model)
        generation = engine.submit(prompt(question), Sampling(temperature=0, max_tokens=TOKENS, stop_ids=stop_ids))
        engine.run([generation])
        out.append(generation.ids)
    return out


async def play(port: int, clients: int, wanted: list[list[int]], seed: int) -> Round:
    """One round: all clients at once; a third leaves early, a tenth reads slowly."""
    rng, seen = random.Random(seed), Round()
    began = time.perf_counter()
    tasks = []
    for _ in range(clients):
        question = rng.randrange(QUESTIONS)
        leave = rng.randrange(TOKENS) if rng.random() < 0.33 else None
        tasks.append(client(port, question, wanted[question], leave, rng.random() < 0.1, seen, rng))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    seen.wrong += [repr(one) for one in results if isinstance(one, BaseException)]
    seen.seconds = time.perf_counter() - began
    return seen


def soak(tokenizer: Any, template: Any, clients: int, rounds: int, max_batch: int = 64) -> dict[str, Any]:
    """Plays rounds against a server in this process; returns what was seen and what is left over."""
    stop_ids = tuple(template.stop_ids(tokenizer))
    for seed in range(50):  # one whose answers are long
        model = build(tokenizer, seed)
        wanted = answers(model, stop_ids)
        if min(len(ids) for ids in wanted) >= TOKENS // 2:
            break
    pool = Engine(model).pool
    memory = 2 * max_batch * pool.row_bytes(128)
    engine = Engine(model, max_batch=max_batch, prefill_chunk=256, page_size=16, pool_bytes=memory)
    settings = ServeSection(port=0, max_in_flight=clients + 1)
    app = create_app(AsyncEngine(engine), tokenizer, template, model_name="soak", settings=settings)
    generator = app.state.generator
    seen: list[Round] = []
    left: list[dict[str, Any]] = []
    cpu = time.process_time()
    with background(app, settings) as url:
        for number in range(rounds):
            seen.append(asyncio.run(play(int(url.rsplit(":", 1)[1]), clients, wanted, number)))
            end = time.monotonic() + 10
            while (generator.in_flight or engine.busy) and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.1)
            gc.collect()
            stats = engine.stats()
            left.append(
                {
                    "in_flight": generator.in_flight,
                    "registered": len(generator._running),
                    "queues": len(generator.engine._queues),
                    "running": stats["running"],
                    "waiting": stats["waiting"],
                    "row_bytes": stats["cache_bytes"] - engine.pool.bytes,
                    "swapped_bytes": stats["swapped_bytes"],
                    "generations": sum(type(one).__name__ == "Generation" for one in gc.get_objects()),
                    "rss_mib": _rss() / 2**20,
                }
            )
    return {
        "clients": clients,
        "rounds": [
            {
                "finished": one.finished,
                "left_early": one.left,
                "wrong": len(one.wrong),
                "examples": one.wrong[:3],
                "statuses": dict(one.statuses),
                "seconds": round(one.seconds, 2),
                "tokens_per_second": round(one.tokens / one.seconds),
                "first_token_ms_median": round(sorted(one.first_token_ms)[len(one.first_token_ms) // 2]),
            }
            for one in seen
        ],
        "left_over": left,
        "preemptions": engine.stats()["preemptions"],
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Runs it and prints a table."""
    from overland.chat import XTML, build_tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="100 clients")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    import tokenizers

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(["message role think response"], trainer)
    made = soak(build_tokenizer(bpe), XTML(), 100 if options.quick else options.clients, options.rounds)
    for number, one in enumerate(made["rounds"]):
        print(f"round {number}: {one}")
    for number, one in enumerate(made["left_over"]):
        print(f"left over after round {number}: {one}")
    print(f"preemptions {made['preemptions']:.0f}, CPU seconds {made['cpu_seconds']}")
    if options.json:
        options.json.write_text(json.dumps(made, indent=1))
    sys.exit(1 if any(one["wrong"] for one in made["rounds"]) else 0)


if __name__ == "__main__":
    main()
