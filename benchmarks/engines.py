"""Our exports in other engines, beside our own model: mlx-lm's Kimi K3, and llama.cpp on GGUF.

    python -m benchmarks.engines [--quick] [--json OUT]

The peers are mlx-lm and xllamacpp in environments of their own (`make peers`); without one its rows are left out, which
is said. Small drawn models, two rows of 40 ids and 24 greedy tokens after each. fp32: both sides. bf16: the file holds
bf16; we compute in fp32 on the same rounded weights, llama.cpp rounds its products' inputs too. Run from the
repository's root.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from overland.model import load_model
from tests.peers.engines import LLAMA_CPP, MLX, Beside, against_llama_cpp, against_mlx, prompts, small, words
from tests.peers.test_engines import FAMILIES, K3
from tests.tiny import tiny


def rows(quick: bool) -> Iterator[tuple[str, str, Beside]]:
    """(engine, case, what was found)."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = (Path(folder) / str(number) for number in range(100))
        if MLX.exists():
            yield "mlx-lm", "Kimi K3, 10k parameters", against_mlx(tiny(torch.float32), prompts(32), _made(scratch))
            nano = load_model("nano")
            yield "mlx-lm", "Kimi K3, nano", against_mlx(nano, prompts(nano.config.vocab_size), _made(scratch))
        if LLAMA_CPP.exists():
            tokenizer = words()
            kimi = ("kimi_k3, heads of 8", *K3)
            runs = [(case, "float32") for case in (kimi if quick else (*kimi, *FAMILIES))]
            for case, dtype in [*runs, ("kimi_k3, nano", "bfloat16")]:
                found = against_llama_cpp(small(case, tokenizer), tokenizer, _made(scratch), dtype)
                yield "llama.cpp", f"{case}, {dtype}", found


def _made(scratch: Iterator[Path]) -> Path:
    folder = next(scratch)
    folder.mkdir()
    return folder


def main() -> None:
    """Print a row for each engine and case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, python in (("mlx-lm", MLX), ("llama.cpp", LLAMA_CPP)):
        if not python.exists():
            print(f"{name} is left out: there is no {python} (make peers)")
    found = []
    print("| engine | case | logits | greedy tokens |\n|---|---|---|---|")
    for engine, case, beside in rows(options.quick):
        print(f"| {beside.versions} | {case} | {beside.logits:.0e} | {beside.tokens} of {beside.of} |", flush=True)
        found.append({"engine": engine, "case": case, **asdict(beside)})
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
