"""MXFP4: 4-bit floats in blocks of 32 that share one power-of-two scale, 4.25 bits a weight.

An element (E2M1) is a sign bit and one of eight values; a scale (E8M0) is a byte e worth 2^(e-127), 255 being NaN:

    value = VALUES[code & 7] * (-1)^(code >> 3) * 2^(e - 127)

A rule chooses the scale from a block's largest magnitude; the elements are then rounded to the nearest code, ties to
the even one, and saturate at 6. Blocks run along `dim`, the input dimension of a weight. Two codes are packed in a
byte, the even element in the low nibble.
Source: OCP Microscaling Formats 1.0; reference/architecture.md §12.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland.errors import UsageError
from overland.kernels.choice import kernel_choice

MXFP4_BLOCK = 32
MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# What a rule adds to the bits of a block's largest magnitude a (fp32) before its exponent is read: the carry raises the
# exponent from a significand of 1.75 on (even), never (floor) or above 1.5 (ceil).
MXFP4_RULES = {
    "even": 1 << 21,  # a / scale in [3.5, 7): the rule of compressed-tensors, and EVEN of torchao
    "floor": 0,  # a / scale in [4, 8): the OCP paper's, FLOOR of torchao
    "ceil": (1 << 22) - 1,  # a / scale in (3, 6]: nothing saturates; RCEIL of torchao
}
_NAN_SCALE = 255
_MAX_SCALE = 252  # 6 * 2^(252-127) is the last value that fp32 holds

# Halfway points between neighbours; a tie goes up where the upper code is the even one.
_HALFWAY = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def mxfp4_quantize(x: Tensor, dim: int = -1, rule: str = "even") -> tuple[Tensor, Tensor]:
    """Codes (uint8 0..15, the shape of `x`) and scale bytes (uint8, `dim` divided by 32).

    Works on fp32 values; float64 is rounded to fp32 first. A block that holds NaN or infinity gets the NaN scale. The
    sign of what rounds to zero is kept. Raises UsageError for an unknown rule or a `dim` that 32 does not divide.
    """
    if kernel_choice() == "reference":
        return mxfp4_quantize_reference(x, dim, rule)
    blocks = _blocks(x, dim, rule)
    amax = blocks.abs().amax(-1)
    exponents = (amax.view(torch.int32) + MXFP4_RULES[rule] >> 23) - 2  # 6 = 1.5 * 2^2 tops the codes
    scales = exponents.clamp_(0, _MAX_SCALE).to(torch.uint8).masked_fill_(~amax.isfinite(), _NAN_SCALE)

    # 1 / scale, exactly: 2^(127-e) has the exponent field 254-e (never negative for a scale that is not NaN)
    inverse = (254 - scales.int()).clamp_(min=0).bitwise_left_shift_(23).view(torch.float32)
    magnitudes = blocks.abs().mul_(inverse.unsqueeze(-1))
    codes = torch.zeros_like(magnitudes, dtype=torch.uint8)
    for halfway, tie_goes_up in _HALFWAY:
        codes += magnitudes >= halfway if tie_goes_up else magnitudes > halfway
    codes += blocks.signbit().to(torch.uint8).mul_(8)
    return codes.flatten(-2).movedim(-1, dim), scales.movedim(-1, dim)


def mxfp4_dequantize(codes: Tensor, scales: Tensor, dim: int = -1, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of `codes` under `scales` (as mxfp4_quantize gives them). Exact in fp32 and in bf16."""
    if codes.shape[dim] != scales.shape[dim] * MXFP4_BLOCK:
        raise UsageError(
            f"MXFP4: {scales.shape[dim]} scales for {codes.shape[dim]} codes along dim {dim}; each belongs to 32 codes"
        )
    if kernel_choice() == "reference":
        return mxfp4_dequantize_reference(codes, scales, dim, dtype)
    table = torch.tensor(MXFP4_VALUES + tuple(-v for v in MXFP4_VALUES), device=codes.device)
    blocks = codes.movedim(dim, -1).unflatten(-1, (-1, MXFP4_BLOCK))
    values = table.index_select(0, blocks.flatten().int()).view(blocks.shape)
    values *= _scale_values(scales.movedim(dim, -1)).unsqueeze(-1)
    return values.flatten(-2).movedim(-1, dim).to(dtype)


def mxfp4_round(x: Tensor, dim: int = -1, rule: str = "even") -> Tensor:
    """`x` with every value replaced by the one that its MXFP4 form stands for; keeps dtype and shape."""
    return mxfp4_dequantize(*mxfp4_quantize(x, dim, rule), dim=dim, dtype=x.dtype)


def mxfp4_pack(codes: Tensor) -> Tensor:
    """Codes [..., K] to bytes [..., K/2]: the even element in the low nibble, the odd one in the high."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def mxfp4_unpack(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] to codes [..., K]; undoes mxfp4_pack."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def mxfp4_quantize_reference(x: Tensor, dim: int = -1, rule: str = "even") -> tuple[Tensor, Tensor]:
    """The definition in float64: the nearest of the eight values by distance, the first even code where two are."""
    blocks = _blocks(x, dim, rule).double()
    amax = blocks.abs().amax(-1)
    significand, exponent = torch.frexp(amax)  # amax = significand * 2^exponent with a significand in [0.5, 1)
    raised = {"even": significand >= 0.875, "floor": significand > 1, "ceil": significand > 0.75}[rule]
    floor_log2 = torch.where(amax > 0, exponent - 1 + raised.int(), -127)
    scales = (floor_log2 - 2 + 127).clamp(0, _MAX_SCALE).masked_fill(~amax.isfinite(), _NAN_SCALE)

    even_first = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=x.device)  # argmin takes the first of equal distances
    values = torch.tensor(MXFP4_VALUES, dtype=torch.float64, device=x.device)[even_first]
    magnitudes = torch.ldexp(blocks.abs(), 127 - scales.unsqueeze(-1))
    nearest = even_first[(magnitudes.unsqueeze(-1) - values).abs().argmin(-1)]
    nearest = nearest.masked_fill(~amax.isfinite().unsqueeze(-1), 0)
    codes = torch.where(blocks.signbit(), nearest + 8, nearest)
    return codes.to(torch.uint8).flatten(-2).movedim(-1, dim), scales.to(torch.uint8).movedim(-1, dim)


def mxfp4_dequantize_reference(
    codes: Tensor, scales: Tensor, dim: int = -1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The formula at the top, in float64."""
    values = torch.tensor(MXFP4_VALUES, dtype=torch.float64, device=codes.device)[(codes & 7).long()]
    values = torch.where(codes > 7, -values, values)
    exponents = scales.double().masked_fill(scales == _NAN_SCALE, torch.nan) - 127
    return (values * exponents.exp2().repeat_interleave(MXFP4_BLOCK, dim)).to(dtype)


def _blocks(x: Tensor, dim: int, rule: str) -> Tensor:
    """`x` in fp32 with `dim` last and cut in blocks: [..., K/32, 32]."""
    if rule not in MXFP4_RULES:
        raise UsageError(f"MXFP4 scale rule = {rule!r} is unknown; valid: {', '.join(MXFP4_RULES)}")
    if x.shape[dim] % MXFP4_BLOCK:
        raise UsageError(
            f"MXFP4: dim {dim} of shape {list(x.shape)} is {x.shape[dim]}, not a multiple of {MXFP4_BLOCK}"
        )
    return x.movedim(dim, -1).unflatten(-1, (-1, MXFP4_BLOCK)).float()


def _scale_values(scales: Tensor) -> Tensor:
    """2^(e-127) in fp32, exactly: byte 0 is below the least normal number, so it has a bit pattern of its own."""
    bits = scales.int().bitwise_left_shift(23).masked_fill_(scales == 0, 1 << 22)
    return bits.view(torch.float32).masked_fill_(scales == _NAN_SCALE, torch.nan)
