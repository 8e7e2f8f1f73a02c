"""What a token costs as the context grows: sparse attention beside full attention and the full-size indexer.

    python -m benchmarks.length [--quick] [--tokens N] [--json OUT] [--chart docs/length.svg]

`micro` in K3's order (6 KDA layers, 2 of full attention), fp32, one thread, random weights. Three kinds: the exact best
2,048 keys by an indexer of 4 heads x 32; the same by K3.1's indexer of 32 heads x 128; full attention. The first is
prefilled for real, 4,096 tokens at a time, and every piece is timed (`--drawn` leaves that out). All are timed on some
tokens behind a cache drawn at random, because a whole prefill of the others would take hours. Then one token at a time
behind a drawn cache of a million. CPU seconds; memory is the process's peak. There is no peer: no other implementation
of this model runs on a CPU at these lengths.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.line_svg import line_svg
from overland.model import Cache, Decoder, initialise, preset

PIECE = 4096
KINDS: dict[str, dict[str, int] | None] = {
    "sparse, indexer 4 x 32": {"num_heads": 4, "head_dim": 32, "topk": 2048},
    "sparse, indexer 32 x 128": {"num_heads": 32, "head_dim": 128, "topk": 2048},
    "full attention": None,
}
NEW = dict(zip(KINDS, (1024, 64, 128), strict=True))  # tokens that are timed behind a drawn cache


def build(kind: str) -> Decoder:
    changes: dict[str, Any] = {"max_position_embeddings": 1 << 21}
    if KINDS[kind] is not None:
        changes["dsa_config"] = KINDS[kind]
    return initialise(Decoder(preset("micro", **changes)), "standard", 0).eval()


def drawn_cache(model: Decoder, tokens: int, spare: int) -> Cache:
    """As after `tokens` tokens, with numbers of about the size they have, and room for `spare` more."""
    gen, cache = torch.Generator().manual_seed(0), model.new_cache(1)
    for layer in cache.layers:
        for name, x in vars(layer).items():
            shape = (1, tokens + spare, x.shape[-1]) if layer.slotted else x.shape
            setattr(layer, name, torch.randn(shape, generator=gen).mul_(1.0 if layer.slotted else 0.1))
    cache.lengths = torch.tensor([tokens])
    return cache


def ids(tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 1024, (1, tokens), generator=torch.Generator().manual_seed(seed))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@torch.no_grad()
def prefill(kind: str, tokens: int) -> list[dict[str, float]]:
    """One row a piece: tokens so far, milliseconds a token within it, the process's peak memory after it.

    What is shown of them is printed at once: a whole prefill takes minutes.
    """
    model, rows = build(kind), []
    model(ids(64), cache=model.new_cache(1), last_only=True)
    cache, begin = model.new_cache(1), peak_mb()
    for at in range(0, tokens, PIECE):
        start = time.process_time()
        model(ids(PIECE, at), cache=cache, last_only=True)
        ms = 1000 * (time.process_time() - start) / PIECE
        rows.append({"tokens": at + PIECE, "ms": ms, "peak_mb": peak_mb() - begin})
        show(rows)
    return rows


@torch.no_grad()
def marginal(kind: str, before: int, tokens: int) -> float:
    """Milliseconds a token of `tokens` that follow a drawn cache of `before`."""
    model = build(kind)
    model(ids(16), cache=model.new_cache(1), last_only=True)
    cache = drawn_cache(model, before, tokens)
    start = time.process_time()
    model(ids(tokens), cache=cache, last_only=True)
    return 1000 * (time.process_time() - start) / tokens


@torch.no_grad()
def decode(kind: str, before: int, tokens: int = 6) -> dict[str, float]:
    """Milliseconds a token (the least of `tokens`), bytes of cache a token and what one token reads of it."""
    model = build(kind)
    cache = drawn_cache(model, before, 64)
    times = []
    for n in range(tokens):
        start = time.process_time()
        model(ids(1, n), cache=cache)
        times.append(time.process_time() - start)
    held = read = 0
    for layer in cache.layers:
        if layer.slotted:
            widths = {name: 4 * x.shape[-1] for name, x in vars(layer).items()}
            held += sum(widths.values())
            sparse = "keys" in widths
            read += widths["latents"] * (2048 if sparse else before) + widths.get("keys", 0) * before
    return {"ms": 1000 * min(times), "cache_bytes_a_token": held, "read_mb": read / 1e6}


def chart(rows: list[dict[str, float]], beside: dict[str, dict[int, float]], path: Path) -> None:
    """Milliseconds a token against the tokens before it, logarithmic both ways."""
    lines = {kind: [(n / 1024, ms) for n, ms in points.items()] for kind, points in beside.items()}
    if rows:
        lines["sparse, prefilled for real"] = [(r["tokens"] / 1024, r["ms"]) for r in rows[1:]]
    axes = ((8, 16, 32, 64, 128), (0.3, 1, 3, 10, 30, 100))
    labels = "tokens in the context, thousands", "prefill, CPU ms a token"
    path.write_text(line_svg(lines, *axes, *labels, logarithmic=True), encoding="utf-8")


def show(rows: list[dict[str, float]]) -> None:
    """The last row where it ends at a power of two from 8,192 on; before the first of them what the columns mean."""
    row = rows[-1]
    tokens = int(row["tokens"])
    if tokens == 2 * PIECE:
        print(f"prefill, {next(iter(KINDS))}: each row is the last {PIECE} tokens before a length\n")
        print(f"{'tokens':>8}{'ms a token':>12}{'x at 8k':>9}{'peak MB':>9}{'bytes a token':>15}")
    if tokens < 2 * PIECE or tokens & (tokens - 1):
        return
    base = rows[1]
    each = (row["peak_mb"] - base["peak_mb"]) * 1024**2 / max(1, tokens - base["tokens"])
    slope = f"{each:15.0f}" if row is not base else ""
    print(f"{tokens:8}{row['ms']:12.3f}{row['ms'] / base['ms']:9.2f}{row['peak_mb']:9.0f}{slope}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16k tokens, and a cache of 64k to decode from")
    parser.add_argument("--drawn", action="store_true", help="no real prefill: drawn caches only")
    parser.add_argument("--tokens", type=int, help="how far to prefill (default 131072)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = options.tokens or (16384 if options.quick else 131072)
    sparse, _, full = KINDS
    before = 1 << (16 if options.quick else 20)

    rows = [] if options.drawn else prefill(sparse, tokens)
    found: dict[str, Any] = {"prefill": rows, "marginal": {}, "decode": {}}
    print(f"\nbehind a drawn cache, ms a token\n{'tokens':>8}" + "".join(f"{kind:>28}" for kind in KINDS))
    for length in sorted({8192, min(32768, tokens), tokens}):
        found["marginal"][length] = {kind: marginal(kind, length - new, new) for kind, new in NEW.items()}
        print(f"{length:8}" + "".join(f"{ms:28.2f}" for ms in found["marginal"][length].values()), flush=True)

    print(f"\ndecoding behind {before:,} tokens")
    print(f"{'':28}{'ms a token':>12}{'cache bytes a token':>21}{'MB read a token':>17}")
    for kind in (sparse, full):
        row = found["decode"][kind] = decode(kind, before)
        print(f"{kind:28}{row['ms']:12.1f}{row['cache_bytes_a_token']:21.0f}{row['read_mb']:17.1f}", flush=True)
    if options.chart:
        points = {kind: {n: row[kind] for n, row in found["marginal"].items()} for kind in KINDS}
        chart(rows, points, options.chart)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
