"""Runs other people's MXFP4 quantisers: torchao 0.18, compressed-tensors 0.20, transformers 5.24 (dequantisation).

    PEER_PYTHON tests/kernels/mxfp4_peers.py tests/kernels/data/mxfp4_peers.safetensors

writes the golden vectors anew, from seeded weights that hold ties, zeros of both signs, and blocks around the points
where the scale rules part. PEER_PYTHON has torch, torchao, compressed-tensors and transformers; overland is not needed.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

TORCHAO_MODES = {"even": "EVEN", "floor": "FLOOR", "ceil": "RCEIL"}


def weights() -> Tensor:
    """bf16 [64, 256]: 512 blocks, of normal weights at many scales, of exact ties, and at every rule's threshold."""
    random = torch.Generator().manual_seed(12)
    normal = (
        torch.randn(32, 8, 32, generator=random) * torch.randint(-40, 40, (32, 8, 1), generator=random).float().exp2()
    )
    small = torch.randn(16, 8, 32, generator=random) * 0.02
    halves = torch.randint(-24, 25, (8, 8, 32), generator=random) * 0.25  # every tie of the element's rounding
    halves[..., 0] = 6.0
    edges = torch.randn(8, 8, 32, generator=random)
    edges[..., 0] = torch.tensor([3.0, 3.015625, 3.484375, 3.5, 3.515625, 6.0, 7.0, -7.5])  # around 1.5 and 1.75 * 2^n
    small[0, 0], small[0, 1], small[0, 2, 3] = 0.0, -0.0, -0.0
    return torch.cat([normal, small, halves, edges]).flatten(-2).bfloat16()


def torchao_quantize(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scale, data = to_mx(x.contiguous(), torch.float4_e2m1fn_x2, 32, ScaleCalculationMode[TORCHAO_MODES[rule]])
    return data.view(torch.uint8), scale.view(torch.uint8)


def compressed_tensors_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(
        num_bits=4, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8
    )
    blocks = x.float().unflatten(-1, (-1, 32))
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    packed = MXFP4PackedCompressor.compress({"weight": x.float(), "weight_scale": scale}, scheme)
    return packed["weight_packed"], packed["weight_scale"]


def transformers_dequantize(packed: Tensor, scales: Tensor) -> Tensor:
    """gpt-oss's layout is one tensor [E, out, in/32, 16]; it comes back as bf16 [E, in, out]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = packed.unflatten(-1, (-1, 16)).unsqueeze(0)
    return convert_moe_packed_tensors(blocks, scales.unsqueeze(0), dtype=torch.bfloat16)[0].mT.contiguous()


def main(path: Path) -> None:
    x = weights()
    tensors = {"weights": x}
    for rule in TORCHAO_MODES:
        tensors[f"torchao.{rule}.packed"], tensors[f"torchao.{rule}.scales"] = torchao_quantize(x, rule)
    tensors["compressed_tensors.packed"], tensors["compressed_tensors.scales"] = compressed_tensors_quantize(x)
    tensors["transformers.values"] = transformers_dequantize(
        tensors["torchao.even.packed"], tensors["torchao.even.scales"]
    )
    peers = ("torchao", "compressed-tensors", "transformers")
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={peer: version(peer) for peer in peers})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
