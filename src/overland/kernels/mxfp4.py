"""MXFP4: 4-bit floats in blocks of 32 that share one power-of-two scale, 4.25 bits a weight.

An element (E2M1) is a sign bit and one of eight values; a scale (E8M0) is a byte e worth 2^(e-127), 255 being NaN:

    value = VALUES[code & 7] * (-1)^(code >> 3) * 2^(e - 127)

A rule chooses the scale from a block's largest magnitude; the elements are then rounded to the nearest code, ties to
the even one, and saturate at 6. Blocks run along `dim`, the input dimension of a weight. Two codes are packed in a
byte, the even element in the low nibble. The compiled form (native/mxfp4.cpp) works on packed bytes and gives the bits
that the torch form gives.
Source: OCP Microscaling Formats 1.0; reference/architecture.md §12.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overland.errors import UsageError
from overland.kernels.choice import kernel_choice
from overland.kernels.compiled import Compiled

MXFP4_BLOCK = 32
MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# What a rule adds to the bits of a block's largest magnitude a (fp32) before its exponent is read: the carry raises the
# exponent from a significand of 1.75 on (even), never (floor) or above 1.5 (ceil).
MXFP4_RULES = {
    "even": 1 << 21,  # a / scale in [3.5, 7): the rule of compressed-tensors, and EVEN of torchao
    "floor": 0,  # a / scale in [4, 8): the OCP paper's, FLOOR of torchao
    "ceil": (1 << 22) - 1,  # a / scale in (3, 6]: nothing saturates; RCEIL of torchao
}
MXFP4_SEARCH = "search"  # not a rule but a search: the scale with the least squared error in its block
MXFP4_CHOICES = (*MXFP4_RULES, MXFP4_SEARCH)
_NAN_SCALE = 255
_MAX_SCALE = 252  # 6 * 2^(252-127) is the last value that fp32 holds

_native = Compiled("mxfp4", (torch.float32, torch.bfloat16), encode="ppp ii", decode="ppp i")
_native_round = Compiled("mxfp4", (torch.float32,), round="pp iiii")

# Halfway points between neighbours; a tie goes up where the upper code is the even one.
_HALFWAY = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def mxfp4_encode(x: Tensor, rule: str = "even") -> tuple[Tensor, Tensor]:
    """`x` [..., K] as bytes: packed codes [..., K/2] and scales [..., K/32], both uint8, blocks along the last dim.

    Works on fp32 values; float64 is rounded to fp32 first. A block that holds NaN or infinity gets the NaN scale. The
    sign of what rounds to zero is kept. `rule` is one of MXFP4_RULES, or "search" (slow: several scales are tried).
    Raises UsageError for another rule or a K that 32 does not divide.
    """
    _check(x, -1, rule)
    x = x if x.dtype == torch.bfloat16 else x.float()
    if rule == MXFP4_SEARCH or not _native.runs(x):
        codes, scales = mxfp4_quantize(x, rule=rule)
        return mxfp4_pack(codes), scales
    x = x.detach().contiguous()
    packed = x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=torch.uint8)
    scales = x.new_empty((*x.shape[:-1], x.shape[-1] // MXFP4_BLOCK), dtype=torch.uint8)
    _native("encode", x, packed, scales, scales.numel(), MXFP4_RULES[rule])
    return packed, scales


def mxfp4_decode(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values [..., K] of `packed` bytes [..., K/2] under `scales` [..., K/32]. Exact in fp32 and in bf16."""
    if packed.shape[-1] * 2 != scales.shape[-1] * MXFP4_BLOCK or packed.shape[:-1] != scales.shape[:-1]:
        raise UsageError(
            f"MXFP4: packed {list(packed.shape)} and scales {list(scales.shape)} do not belong together; "
            "a row of K weights is K/2 bytes and K/32 scale bytes"
        )
    wide = dtype if dtype in _native.dtypes else torch.float32
    out = torch.empty((*packed.shape[:-1], 2 * packed.shape[-1]), dtype=wide, device=packed.device)
    if _native.runs(out):
        _native("decode", out, packed.contiguous(), scales.contiguous(), scales.numel())
        return out.to(dtype)
    return mxfp4_dequantize(mxfp4_unpack(packed), scales, dtype=dtype)


def mxfp4_round(x: Tensor, dim: int = -1, rule: str = "even") -> Tensor:
    """`x` with every value replaced by the one that its MXFP4 form stands for; keeps dtype and shape."""
    _check(x, dim, rule)
    wide = x.detach().float().contiguous()
    if rule == MXFP4_SEARCH or not _native_round.runs(wide):
        return mxfp4_dequantize(*mxfp4_quantize(x, dim, rule), dim=dim, dtype=x.dtype)
    shape, at = wide.shape, dim % wide.ndim
    outer, inner = shape[:at].numel(), shape[at + 1 :].numel()
    rounded = torch.empty_like(wide)
    _native_round("round", rounded, wide, outer, shape[at] // MXFP4_BLOCK, inner, MXFP4_RULES[rule])
    return rounded.to(x.dtype)


def mxfp4_quantize(x: Tensor, dim: int = -1, rule: str = "even") -> tuple[Tensor, Tensor]:
    """Codes (uint8 0..15, the shape of `x`) and scale bytes (uint8, `dim` divided by 32): mxfp4_encode, not packed."""
    _check(x, dim, rule)
    if kernel_choice() == "reference" and rule != MXFP4_SEARCH:
        return mxfp4_quantize_reference(x, dim, rule)
    blocks = _blocks(x, dim)
    scales = _searched_scales(blocks) if rule == MXFP4_SEARCH else _scales(blocks, rule)
    return _codes(blocks, scales).flatten(-2).movedim(-1, dim), scales.movedim(-1, dim)


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


def mxfp4_pack(codes: Tensor) -> Tensor:
    """Codes [..., K] to bytes [..., K/2]: the even element in the low nibble, the odd one in the high."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def mxfp4_unpack(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] to codes [..., K]; undoes mxfp4_pack."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def mxfp4_quantize_reference(x: Tensor, dim: int = -1, rule: str = "even") -> tuple[Tensor, Tensor]:
    """The definition in float64: the nearest of the eight values by distance, the first even code where two are."""
    _check(x, dim, rule)
    blocks = _blocks(x, dim).double()
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


def _check(x: Tensor, dim: int, rule: str) -> None:
    if rule not in MXFP4_CHOICES:
        raise UsageError(f"MXFP4 scale rule = {rule!r} is unknown; valid: {', '.join(MXFP4_CHOICES)}")
    if x.shape[dim] % MXFP4_BLOCK:
        raise UsageError(
            f"MXFP4: dim {dim} of shape {list(x.shape)} is {x.shape[dim]}, not a multiple of {MXFP4_BLOCK}"
        )


def _blocks(x: Tensor, dim: int) -> Tensor:
    """`x` in fp32 with `dim` last and cut in blocks: [..., K/32, 32]."""
    return x.movedim(dim, -1).unflatten(-1, (-1, MXFP4_BLOCK)).float()


def _scales(blocks: Tensor, rule: str) -> Tensor:
    """The rule's scale byte of every block."""
    amax = blocks.abs().amax(-1)
    exponents = (amax.view(torch.int32) + MXFP4_RULES[rule] >> 23) - 2  # 6 = 1.5 * 2^2 tops the codes
    return exponents.clamp_(0, _MAX_SCALE).to(torch.uint8).masked_fill_(~amax.isfinite(), _NAN_SCALE)


def _searched_scales(blocks: Tensor) -> Tensor:
    """Of EVEN's scale s, its double and its half the one with the least squared error; ties keep EVEN's.

    No other can win. Under s/4 the largest element, at least 3.5 s, becomes 1.5 s and is off by 4 s^2 in squares; the
    31 others can save s^2/16 each. And what 4 s offers up to the largest element, 2 s offers too.
    """
    even = _scales(blocks, "even")
    best, least = even, torch.full(even.shape, torch.inf, dtype=torch.float64, device=blocks.device)
    for step in (0, 1, -1):
        scales = (even.int() + step).clamp_(0, _MAX_SCALE).to(torch.uint8).where(even != _NAN_SCALE, even)
        codes = _codes(blocks, scales)
        values = mxfp4_dequantize(codes.flatten(-2), scales).unflatten(-1, (-1, MXFP4_BLOCK))
        error = (values.double() - blocks.double()).square().sum(-1)
        best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
    return best


def _codes(blocks: Tensor, scales: Tensor) -> Tensor:
    """The nearest codes under `scales`, ties to the even one, saturating."""
    # 1 / scale, exactly: 2^(127-e) has the exponent field 254-e (never negative for a scale that is not NaN)
    inverse = (254 - scales.int()).clamp_(min=0).bitwise_left_shift_(23).view(torch.float32)
    magnitudes = blocks.abs().mul_(inverse.unsqueeze(-1))
    codes = torch.zeros_like(magnitudes, dtype=torch.uint8)
    for halfway, tie_goes_up in _HALFWAY:
        codes += magnitudes >= halfway if tie_goes_up else magnitudes > halfway
    return codes.add_(blocks.signbit().to(torch.uint8).mul_(8))


def _scale_values(scales: Tensor) -> Tensor:
    """2^(e-127) in fp32, exactly: byte 0 is below the least normal number, so it has a bit pattern of its own."""
    bits = scales.int().bitwise_left_shift(23).masked_fill_(scales == 0, 1 << 22)
    return bits.view(torch.float32).masked_fill_(scales == _NAN_SCALE, torch.nan)
