"""Greedy decoding with a cache in fp32 on one thread, beside Transformers' classes with the same weights.

    python -m benchmarks.decode_step [--quick] [--json OUT]

CPU milliseconds of this process for one step of the whole batch, after prompts of 32 tokens, the median of 64 steps;
batch 1 beside Transformers, batch 64 for tokens per CPU second, and `nano` with 96 rows of up to 300 tokens. The shapes
are those of benchmarks/tiny_shapes.py. Without Transformers (the dev extra) only our own rows are measured, and that is
said.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tiny_shapes import k3, pair, parameters
from overland.kernels import compiled_state
from overland.model import Decoder, Packing, preset
from overland.model.init import initialise
from overland.runs import write_json

PROMPT = 32


def median_ms(one: Callable[[], None], steps: int) -> float:
    """Median CPU milliseconds of a step; the first four are not counted."""
    times = []
    for _ in range(steps + 4):
        begin = time.process_time()
        one()
        times.append(time.process_time() - begin)
    return 1e3 * statistics.median(times[4:])


def ours(model: Decoder, prompts: Tensor, steps: int, lengths: Tensor | None = None) -> tuple[float, list[int]]:
    """Milliseconds a step, and what the first row said."""
    said: list[int] = []
    with torch.inference_mode():
        cache = model.new_cache(prompts.shape[0])
        logits = model(prompts, packing=Packing(lengths=lengths), cache=cache, last_only=True).logits

        def one() -> None:
            nonlocal logits
            token = logits[:, -1].argmax(-1, keepdim=True)
            said.append(int(token[0]))
            logits = model(token, cache=cache).logits

        return median_ms(one, steps), said


def theirs(model: nn.Module, prompts: Tensor, steps: int) -> tuple[float, list[int]]:
    """The same with Transformers' cache, called as its `generate` calls it."""
    said: list[int] = []
    with torch.inference_mode():
        out = model(prompts, use_cache=True)

        def one() -> None:
            nonlocal out
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            said.append(int(token[0]))
            out = model(token, past_key_values=out.past_key_values, use_cache=True)

        return median_ms(one, steps), said


def measure(steps: int) -> list[dict[str, Any]]:
    """One row for each shape."""
    gen = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    nano = initialise(Decoder(preset("nano")), "induction", 0).eval()
    lengths = torch.randint(150, 301, (96,), generator=gen)
    many, _ = ours(nano, torch.randint(0, 640, (96, 300), generator=gen), steps, lengths)
    rows.append(
        {"shape": "nano, 96 rows of 150 to 300 tokens", "parameters": parameters(nano), "many": many, "rows": 96}
    )
    prompts = torch.randint(0, 1024, (64, PROMPT), generator=gen)
    for name in ("K3", "kimi_linear", "deepseek_v3"):
        row: dict[str, Any] = {"shape": name, "rows": 64}
        peer: nn.Module | None = None
        if name == "K3":
            model = k3().eval()
        else:
            try:
                model, peer, row["peer_version"] = pair(name)
            except ImportError as error:
                print(f"{name}: not measured, the peer cannot be loaded ({error})")
                continue
        model.eval()
        row["parameters"] = parameters(model)
        row["one"], said = ours(model, prompts[:1], steps)
        if peer is not None:
            row["peer"], heard = theirs(peer.eval(), prompts[:1], steps)
            row["same_tokens"] = said == heard
        row["many"], _ = ours(model, prompts, steps)
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("| shape | batch 1, ms | peer, ms | peer / Overland | same tokens | large batch, ms | tokens/s, x batch 1 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        one = f"{row['one']:.2f}" if "one" in row else "–"
        peer = f"{row['peer']:.2f} ({row['peer_version']})" if "peer" in row else "–"
        ratio = f"{row['peer'] / row['one']:.1f}" if "peer" in row else "–"
        same = ("yes" if row["same_tokens"] else "no") if "peer" in row else "–"
        gain = f"{row['rows'] * row['one'] / row['many']:.1f}" if "one" in row else "–"
        print(f"| {row['shape']} | {one} | {peer} | {ratio} | {same} | {row['many']:.2f} ({row['rows']}) | {gain} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 steps instead of 64")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    built, state = compiled_state()
    print(f"torch {torch.__version__}, one thread; compiled kernels: {state if built else 'none, ' + state}\n")
    rows = measure(16 if args.quick else 64)
    show(rows)
    if args.json:
        write_json(args.json, {"torch": torch.__version__, "kernels": state, "rows": rows})


if __name__ == "__main__":
    main()
