"""Runs one peer's MXFP4 quantiser and prints JSON; a subprocess of benchmarks.mxfp4, under the peers' Python.

    PEER_PYTHON benchmarks/mxfp4_peers.py PEER WEIGHTS.safetensors OUT.safetensors

Reads `weights` (bf16), writes what it made where that is comparable, prints its version and the least CPU seconds of
three runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def least(run: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    best, result = float("inf"), None
    for _ in range(times):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return best, result


def torchao(x: torch.Tensor) -> tuple[float, Any]:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    seconds, (scale, data) = least(lambda: to_mx(x, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.EVEN))
    return seconds, {"packed": data.view(torch.uint8), "scales": scale.view(torch.uint8)}


def compressed_tensors(x: torch.Tensor) -> tuple[float, Any]:
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(
        num_bits=4, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def run() -> Any:
        blocks = x.unflatten(-1, (-1, 32))
        scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
        return MXFP4PackedCompressor.compress({"weight": x, "weight_scale": scale}, scheme)

    seconds, made = least(run)
    return seconds, {"packed": made["weight_packed"], "scales": made["weight_scale"]}


def gguf(x: torch.Tensor) -> tuple[float, Any]:
    """llama.cpp's MXFP4 by its Python package: another scale rule and nibble order, so only the time is compared."""
    from gguf import GGMLQuantizationType, quantize

    wide = x.float().numpy()
    return least(lambda: quantize(wide, GGMLQuantizationType.MXFP4))[0], {}


PEERS = {"torchao": torchao, "compressed-tensors": compressed_tensors, "gguf": gguf}

if __name__ == "__main__":
    torch.set_num_threads(1)
    name, source, target = sys.argv[1:]
    with torch.no_grad():
        seconds, made = PEERS[name](load_file(source)["weights"])
    if made:
        save_file({key: value.contiguous() for key, value in made.items()}, target)
    print(json.dumps({"seconds": seconds, "version": version(name), "comparable": bool(made)}))
