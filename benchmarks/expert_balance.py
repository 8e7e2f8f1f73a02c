"""Ways of keeping expert-parallel ranks equally busy, on natural and on collapsed routing.

    python -m benchmarks.expert_balance [--quick] [--json OUT]

K3's layer (896 experts, 16 a token, latent 3584, width 3072) on 32 ranks with 8,192 tokens each. Natural routing:
shares of the experts log-normal with a coefficient of variation of 1.1 (what measured runs imply); collapsed: nine
tenths of the choices on 8 experts of two ranks. Greedy replication is EPLB's algorithm (deepseek-ai/EPLB) with two
spare slots a rank, placed for the batch before, once drawn like this one, once before the experts' popularity moved.
A row: the busiest rank's load over the mean, choices dropped, experts away from home on the rank with most, rows that
leave their rank and weights fetched for the step (GB a rank, bf16, forward), CPU milliseconds to plan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overland.parallel.balance import Shares, balanced, capacity, plain, replicated, spread_over_sources
from overland.runs.atomic import write_json

EXPERTS, TOP_K, LATENT, WIDTH, RANKS, TOKENS = 896, 16, 3584, 3072, 32, 8192


def routing(kind: str, seed: int, batch: int) -> Tensor:
    """Choices of each source and expert, [S, E]; every source has TOKENS * TOP_K of them. `seed` sets popularity."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "natural":
        sigma = float(torch.tensor(1 + 1.1**2).log().sqrt())
        popularity = (sigma * torch.randn(EXPERTS, generator=generator)).exp()
    else:
        popularity = torch.full((EXPERTS,), 0.1 / (EXPERTS - 8))
        home = EXPERTS // RANKS
        first = home * torch.randperm(RANKS, generator=generator)[:2]
        popularity[(first[:, None] + torch.arange(4)).flatten()] = 0.9 / 8
    generator.manual_seed(1000 * seed + batch)
    drawn = torch.multinomial(popularity, RANKS * TOKENS * TOP_K, True, generator=generator)
    return torch.stack([torch.bincount(part, minlength=EXPERTS) for part in drawn.chunk(RANKS)])


def measure(kind: str, seed: int) -> list[dict[str, Any]]:
    """One row a way."""
    before, moved_on = routing(kind, seed, 0).sum(0), routing(kind, seed + 7, 0).sum(0)
    counts_SE = routing(kind, seed, 1)
    counts = counts_SE.sum(0)
    ways: dict[str, Callable[[], Shares]] = {
        "plain": lambda: plain(counts, RANKS),
        "capacity 1.0": lambda: capacity(counts, RANKS, 1.0),
        "capacity 1.25": lambda: capacity(counts, RANKS, 1.25),
        "greedy replication": lambda: replicated(before, counts, RANKS, 2),
        "greedy, popularity moved": lambda: replicated(moved_on, counts, RANKS, 2),
        "balanced (K3)": lambda: balanced(counts, RANKS),
    }
    rows = []
    for name, way in ways.items():
        start = time.process_time()
        plan = way()
        spent = time.process_time() - start
        moved = spread_over_sources(counts_SE, plan)
        leaving = int(moved.sum()) - int(moved.diagonal().sum())
        fetched = 0 if name.startswith("greedy") else float(plan.redundant.sum()) * 3 * LATENT * WIDTH * 2
        rows.append(
            {
                "routing": kind,
                "way": name,
                "imbalance": plan.imbalance,
                "dropped": plan.dropped / int(counts.sum()),
                "redundant": int(plan.redundant.max()),
                "rows_gb": leaving * LATENT * 2 / RANKS / 1e9,
                "weights_gb": fetched / RANKS / 1e9,
                "plan_ms": 1000 * spent,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed instead of five")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for kind in ("natural", "collapsed"):
        seeds = [measure(kind, seed) for seed in range(1 if arguments.quick else 5)]
        for same in zip(*seeds, strict=True):
            mean = {key: sum(row[key] for row in same) / len(same) for key in same[0] if key not in ("routing", "way")}
            rows.append({"routing": kind, "way": same[0]["way"], **mean})
    print("| routing | way | busiest / mean | dropped | redundant | rows GB | weights GB | plan ms |")
    print("| --- " * 8 + "|")
    for row in rows:
        print(
            f"| {row['routing']} | {row['way']} | {row['imbalance']:.3f} | {row['dropped']:.1%} | "
            f"{row['redundant']:.0f} | {row['rows_gb']:.2f} | {row['weights_gb']:.2f} | {row['plan_ms']:.1f} |"
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
