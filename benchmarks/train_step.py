"""Forward and backward of 1 x 1,024 tokens in fp32 on one thread, beside Transformers' classes with the same weights.

    python -m benchmarks.train_step [--quick] [--repeats N] [--json OUT]

CPU seconds of this process, the least of several runs taken in turns; three shapes of 8 layers and width 256
(benchmarks/tiny_shapes.py), and `nano` on 16 x 192 packed tokens. `torch forms` is the same model without the compiled
kernels. Peer: Transformers (the dev extra); without it only our own rows are measured, and that is said.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tiny_shapes import cpu_seconds, k3, largest_difference, pair, parameters
from overland.kernels import compiled_state
from overland.model import Decoder, Packing, preset
from overland.model.init import initialise
from overland.runs import write_json
from overland.train import cross_entropy


def step(model: nn.Module, ids: Tensor, **options: Any) -> None:
    """Logits, mean loss and every gradient, which is then dropped."""
    targets = ids.roll(-1, 1)
    loss = cross_entropy(model(ids, **options).logits, targets, torch.ones_like(ids), ids.numel())
    loss.backward()
    model.zero_grad(set_to_none=True)


def in_torch_forms(model: nn.Module, ids: Tensor, repeats: int, **options: Any) -> float:
    """The step without the compiled kernels."""
    before = os.environ.get("OVERLAND_KERNELS")
    os.environ["OVERLAND_KERNELS"] = "torch"
    try:
        return cpu_seconds(lambda: step(model, ids, **options), repeats)
    finally:
        os.environ.pop("OVERLAND_KERNELS")
        if before is not None:
            os.environ["OVERLAND_KERNELS"] = before


def measure(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """One row for each shape."""
    ids = torch.randint(0, 1024, (1, tokens), generator=torch.Generator().manual_seed(0))
    rows: list[dict[str, Any]] = []
    small, packed = initialise(Decoder(preset("nano")), "induction", 0), ids.new_zeros(16, 192)
    packed.random_(0, 640, generator=torch.Generator().manual_seed(0))
    packing = Packing(documents=(torch.arange(192) // 70).repeat(16, 1))
    for name, model, inputs, options in (
        ("nano, 16 x 192 packed", small, packed, {"packing": packing}),
        (f"K3, 1 x {tokens}", k3(), ids, {}),
    ):
        ours = cpu_seconds(lambda m=model, x=inputs, o=options: step(m, x, **o), repeats)  # type: ignore[misc]
        plain = in_torch_forms(model, inputs, max(1, repeats // 2), **options)
        rows.append({"shape": name, "parameters": parameters(model), "overland": ours, "torch_forms": plain})
    for family in ("kimi_linear", "deepseek_v3"):
        row: dict[str, Any] = {"shape": f"{family}, 1 x {tokens}"}
        try:
            model, theirs, peer = pair(family)
        except ImportError as error:
            print(f"{family}: not measured, the peer cannot be loaded ({error})")
            continue
        row |= {"parameters": parameters(model), "peer_version": peer}
        row["difference"] = largest_difference(model, theirs, ids[:, :256])
        row["overland"] = cpu_seconds(lambda m=model: step(m, ids), repeats)  # type: ignore[misc]
        row["torch_forms"] = in_torch_forms(model, ids, max(1, repeats // 2))
        row["peer"] = cpu_seconds(lambda m=theirs: step(m, ids), max(1, repeats // 2))  # type: ignore[misc]
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("| shape | parameters | Overland, s | torch forms, s | peer, s | peer / Overland | logits differ by |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        peer = (
            f"{row['peer']:.2f} ({row['peer_version']}) | {row['peer'] / row['overland']:.1f}"
            if "peer" in row
            else "– | –"
        )
        differ = f"{row['difference']:.0e}" if "difference" in row else "–"
        print(
            f"| {row['shape']} | {row['parameters'] / 1e6:.2f}M | {row['overland']:.2f} | {row['torch_forms']:.2f} | "
            f"{peer} | {differ} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 tokens, two runs each")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each form; the least counts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    built, state = compiled_state()
    print(f"torch {torch.__version__}, one thread; compiled kernels: {state if built else 'none, ' + state}\n")
    rows = measure(256 if args.quick else 1024, 2 if args.quick else args.repeats)
    show(rows)
    if args.json:
        write_json(args.json, {"torch": torch.__version__, "kernels": state, "rows": rows})


if __name__ == "__main__":
    main()
