"""MXFP4: quantising, reading back, and multiplying with packed weights, beside torchao, compressed-tensors and gguf.

    python -m benchmarks.mxfp4 [--quick] [--json OUT]

CPU seconds on one thread, the least of several runs on the same bf16 weights (K3's expert shape, 3072 x 3584). Bytes
are compared with each peer's before times are. Peers run under ~/.cache/overland/peers/mxfp4/bin/python (or
OVERLAND_MXFP4_PEERS), a virtual environment with torch, torchao, compressed-tensors, gguf and safetensors; without it
they are left out, by name. The product is compared with torch's own in fp32 and bf16, which reads 7.5 and 3.8 times
the bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from overland import kernels

PEERS = ("torchao", "compressed-tensors", "gguf")
PEER_PYTHON = Path(os.environ.get("OVERLAND_MXFP4_PEERS", Path.home() / ".cache/overland/peers/mxfp4/bin/python"))


def least(run: Callable[[], Any], times: int) -> float:
    """CPU seconds of the quickest of some runs."""
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def quantising(x: Tensor, times: int) -> list[dict[str, Any]]:
    """Our forms and the peers on the same weights: GB/s of bf16 in, CPU seconds a GB, and whether bytes agree."""
    gigabytes = x.nbytes / 1e9
    packed, scales = kernels.mxfp4_encode(x)
    rows = []

    def row(what: str, seconds: float, agrees: str) -> None:
        rows.append({"what": what, "gb_per_s": gigabytes / seconds, "s_per_gb": seconds / gigabytes, "agrees": agrees})

    for rule in ("even", "floor", "ceil"):
        row(f"overland compiled, {rule}", least(lambda r=rule: kernels.mxfp4_encode(x, r), times), "")
    torch_form = kernels.mxfp4_quantize(x)
    same = torch.equal(kernels.mxfp4_pack(torch_form[0]), packed) and torch.equal(torch_form[1], scales)
    row("overland torch form", least(lambda: kernels.mxfp4_pack(kernels.mxfp4_quantize(x)[0]), 1), yes(same))
    row("overland, scale searched", least(lambda: kernels.mxfp4_encode(x, "search"), 1), "")
    if not PEER_PYTHON.is_file():
        print(f"not run: {', '.join(PEERS)} (no Python with them at {PEER_PYTHON})")
        return rows
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.safetensors"), Path(folder, "out.safetensors")
        save_file({"weights": x}, source)
        for peer in PEERS:
            command = [
                str(PEER_PYTHON),
                str(Path(__file__).with_name("mxfp4_peers.py")),
                peer,
                str(source),
                str(target),
            ]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode:
                print(f"not run: {peer} ({done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'})")
                continue
            told = json.loads(done.stdout.strip().splitlines()[-1])
            agrees = "another layout"
            if told["comparable"]:
                theirs = load_file(target)
                codes, ours = kernels.mxfp4_unpack(theirs["packed"]), kernels.mxfp4_unpack(packed)
                sign_of_zero = bool((x[codes != ours] == 0).all())
                agrees = yes(torch.equal(theirs["scales"], scales) and (torch.equal(codes, ours) or sign_of_zero))
            row(f"{peer} {told['version']}", told["seconds"], agrees)
    return rows


def reading(x: Tensor, times: int) -> list[dict[str, Any]]:
    """Decoding to fp32 and bf16, and what training on quantised values costs."""
    packed, scales = kernels.mxfp4_encode(x)
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        seconds = least(lambda d=dtype: kernels.mxfp4_decode(packed, scales, d), times)
        out = x.numel() * dtype.itemsize / 1e9
        rows.append({"what": f"decode to {str(dtype)[6:]}", "gb_per_s": out / seconds})
    wide = x.float().view(8, -1, x.shape[-1])
    seconds = least(lambda: kernels.mxfp4_round(wide, 1), times)
    rows.append({"what": "round fp32 [E, in, out] along in (QAT)", "gb_per_s": wide.nbytes / 1e9 / seconds})
    return rows


def multiplying(times: int) -> list[dict[str, Any]]:
    """One expert matrix times 1 to 64 rows: microseconds packed, and of torch with decoded weights."""
    gen = torch.Generator().manual_seed(0)
    w = torch.randn(3072, 3584, generator=gen) * 0.02
    packed, scales = kernels.mxfp4_encode(w)
    w = kernels.mxfp4_decode(packed, scales)
    narrow = w.bfloat16()
    rows = []
    for count in (1, 2, 4, 8, 16, 64):
        x = torch.randn(count, 3584, generator=gen)
        short = x.bfloat16()
        found = {
            "mxfp4": least(lambda: kernels.mxfp4_product(x, packed, scales), times),  # noqa: B023
            "fp32": least(lambda: F.linear(x, w), times),  # noqa: B023
            "bf16": least(lambda: F.linear(short, narrow), times),  # noqa: B023
        }
        wanted = x.double() @ w.double().T
        error = (kernels.mxfp4_product(x, packed, scales) - wanted).abs().max() / wanted.abs().max()
        rows.append({"rows": count, **{k: 1e6 * v for k, v in found.items()}, "error": float(error)})
    return rows


def yes(same: bool) -> str:
    return "same bytes" if same else "DIFFERENT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the weights")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 3 if options.quick else 7
    matrices = 1 if options.quick else 4
    x = (torch.randn(matrices * 3072, 3584, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    built, state = kernels.compiled_state()
    print(f"{x.numel():,} bf16 weights, one thread, torch {torch.__version__}; compiled kernels: {state}\n")
    found = {"quantising": quantising(x, repeats), "reading": reading(x, repeats), "multiplying": multiplying(repeats)}
    for r in found["quantising"]:
        print(f"{r['what']:32} {r['gb_per_s']:8.3f} GB/s in {r['s_per_gb']:9.2f} s/GB   {r['agrees']}")
    print()
    for r in found["reading"]:
        print(f"{r['what']:40} {r['gb_per_s']:8.2f} GB/s")
    print("\n3072 x 3584, microseconds      packed      fp32      bf16   fp32/packed  largest error")
    for r in found["multiplying"]:
        ratio = r["fp32"] / r["mxfp4"]
        print(
            f"{r['rows']:3} rows {r['mxfp4']:27.0f} {r['fp32']:9.0f} {r['bf16']:9.0f} {ratio:12.2f} {r['error']:14.1e}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"compiled": built, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
