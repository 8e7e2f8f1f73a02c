"""Every way of balancing experts, from a router that has collapsed: which bring the idle experts back, and how fast.

    python -m benchmarks.balancing [--quick] [--steps N] [--json OUT]

The nano model (16 experts, 4 a token, 3 expert layers) trains on real text, byte by byte: the language reference that
comes with every Python (pydoc's topics). Before the first step each router is turned towards the mean of what it reads,
so that the same 4 experts take nearly every token; the recipes then differ in nothing but `balance`. Same seed, same
batches. Recovered: no expert is idle in the last step, and over the last ten the worst layer's largest load is on
average below twice the mean (a step is 512 tokens; single ones scatter). There is no peer to run beside: auxiliary loss
and sign rule are held against Transformers and their papers in the tests.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overland.model import Decoder, initialise, preset
from overland.model.moe import MoE
from overland.runs import RunFolder
from overland.train import PretrainSection, TokenBatch, pretrain

ROWS, LENGTH = 4, 128
RECIPES: dict[str, dict[str, Any]] = {
    "none": {"balance": "none"},
    "quantile, exact": {"balance": "quantile", "balance_ema": 0.0},
    "quantile, 1,000 bins": {"balance": "quantile", "balance_ema": 0.0, "balance_bins": 1000},
    "sign, rate 0.001": {"balance": "sign", "balance_rate": 0.001},
    "sign, rate 0.03": {"balance": "sign", "balance_rate": 0.03},
    "auxiliary 0.01 + z": {"balance": "auxiliary", "balance_loss": 0.01, "balance_z": 1e-3},
    "auxiliary 0.3 + z": {"balance": "auxiliary", "balance_loss": 0.3, "balance_z": 1e-3},
    "capacity 1.25 alone": {"balance": "none", "capacity_factor": 1.25},
}


class Topics:
    """Rows of bytes out of Python's language reference, in a fixed random order."""

    def __init__(self) -> None:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics)).encode()
        self.bytes, self.step = torch.frombuffer(bytearray(text), dtype=torch.uint8).long(), 0

    def next(self) -> TokenBatch:
        gen = torch.Generator().manual_seed(self.step)
        self.step += 1
        starts = torch.randint(0, len(self.bytes) - LENGTH - 1, (ROWS,), generator=gen)
        return TokenBatch.of(torch.stack([self.bytes[s : s + LENGTH + 1] for s in starts.tolist()]))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


@torch.no_grad()
def collapse(model: Decoder, ids: Tensor, strength: float = 4.0) -> None:
    """Turn each router, from the first layer up, so that its first k experts win: logits of +-`strength` on average."""
    for moe in [m for m in model.modules() if isinstance(m, MoE)]:
        read: list[Tensor] = []
        hook = moe.gate.register_forward_pre_hook(lambda _, args, read=read: read.append(args[0]))
        model(ids)
        hook.remove()
        mean = read[0].mean(0)
        direction = strength * mean / mean.square().sum()
        favoured = torch.arange(len(moe.gate.weight)) < moe.gate.k
        moe.gate.weight += torch.where(favoured[:, None], direction, -direction)


def run(recipe: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """The metrics of each step of one training."""
    torch.manual_seed(0)
    model = initialise(Decoder(preset("nano", vocab_size=256)), "induction", 0)
    collapse(model, Topics().next().inputs)
    section = PretrainSection(steps=steps, batch=ROWS, length=LENGTH, lr=4e-3, checkpoint_every=steps, **recipe)
    with tempfile.TemporaryDirectory() as folder:
        pretrain(model, Topics(), section, RunFolder(folder))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "train/loss" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 steps instead of 60")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = options.steps or (12 if options.quick else 60)
    shown = sorted({0, min(2, steps - 1), min(10, steps - 1), steps // 2, steps - 1})
    print(f"nano, {ROWS * LENGTH} tokens a step; the worst layer's largest load over the mean load (4 = collapsed)\n")
    heads = "".join(f"{f'step {s + 1}':>9}" for s in shown)
    print(
        f"{'recipe':22}{heads}"
        f"{'dead':>6}{'entropy':>9}{'dropped':>9}{'agree':>7}{'loss':>7}{'CPU s':>7}  last 10, recovered"
    )
    found = {}
    for name, recipe in RECIPES.items():
        start = time.process_time()
        rows = run(recipe, steps)
        seconds = time.process_time() - start
        last = rows[-1]
        loads = "".join(f"{rows[s]['moe/load_max_over_mean']:9.2f}" for s in shown)
        late = sum(row["moe/load_max_over_mean"] for row in rows[-10:]) / len(rows[-10:])
        recovered = last["moe/dead_experts"] == 0 and late < 2
        print(
            f"{name:22}{loads}{last['moe/dead_experts']:6}{last['moe/entropy']:9.3f}"
            f"{100 * last['moe/dropped_share']:8.1f}%{last['moe/bias_agreement']:7.2f}{last['train/loss']:7.3f}"
            f"{seconds:7.1f}{late:10.2f}, {'yes' if recovered else 'no'}",
            flush=True,
        )
        found[name] = {"recipe": recipe, "recovered": recovered, "last_ten": late, "steps": rows}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
