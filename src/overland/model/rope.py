"""Rotary positions: pairs of channels turn by an angle that grows with the token's place.

    (a, b) -> (a cos t f_i - b sin t f_i,  b cos t f_i + a sin t f_i),   f_i = theta^(-2i/R)

Beyond the trained context the frequencies f_i are stretched: `linear` by one factor, `llama3` and `yarn` by a ramp that
leaves the fast ones alone.
Shapes: B batch, T tokens, H heads, R rotated dims. Source: Su et al. 2021; Peng et al. 2023 (YaRN); Llama 3.1 release.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from overland.model.config import RopeConfig


class Rotary(NamedTuple):
    """Cosines and sines of every token's angles, [B or 1, T, R/2] each."""

    cos: Tensor
    sin: Tensor


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept may later take part in training
def frequencies(rope: RopeConfig, dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, float]:
    """The R/2 angular frequencies of `dim` rotated channels, and the factor on cosine and sine (YaRN's temperature)."""
    turns = torch.arange(0, dim, 2, device=device).to(dtype) / dim
    fast = 1.0 / rope.theta**turns
    if rope.kind == "linear":
        return fast / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, fast), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, fast, dim), _yarn_factor(rope)
    return fast, 1.0


def rotary(rope: RopeConfig, dim: int, position_BT: Tensor, dtype: torch.dtype) -> Rotary:
    """Angles of tokens at `position_BT` [B or 1, T]. They are formed in fp32 at least, then cast to `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    inverse, factor = frequencies(rope, dim, wide, position_BT.device)
    angle = position_BT[..., None].to(wide) * inverse
    cos, sin = angle.cos(), angle.sin()
    if factor != 1:
        cos, sin = cos * factor, sin * factor
    return Rotary(cos.to(dtype), sin.to(dtype))


def rotate(x_BTHR: Tensor, table: Rotary, interleaved: bool = False) -> Tensor:
    """Turn the last dim of `x_BTHR`; a pair is (i, i + R/2), or (2i, 2i + 1) where `interleaved`.

    The result always has the first members in its first half: scores between rotated tensors are the same either way.
    """
    cos, sin = table.cos[:, :, None], table.sin[:, :, None]
    first, second = (x_BTHR[..., 0::2], x_BTHR[..., 1::2]) if interleaved else x_BTHR.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def softmax_scale(rope: RopeConfig | None, dim: int) -> float:
    """dim^-0.5, times DeepSeek's correction where YaRN's temperature is spread over all dims."""
    scale = dim**-0.5
    if rope is not None and rope.kind == "yarn" and rope.mscale_all_dim:
        scale *= _temperature(rope.factor, rope.mscale_all_dim) ** 2
    return scale


def _llama3(rope: RopeConfig, fast: Tensor) -> Tensor:
    assert rope.original_context is not None
    wavelength = 2 * math.pi / fast
    low, high = rope.original_context / rope.low_freq_factor, rope.original_context / rope.high_freq_factor
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = (rope.original_context / wavelength - rope.low_freq_factor) / span
    between = (1 - keep) * fast / rope.factor + keep * fast
    slow = fast / rope.factor
    return torch.where(wavelength > low, slow, torch.where(wavelength < high, fast, between))


def _yarn(rope: RopeConfig, fast: Tensor, dim: int) -> Tensor:
    assert rope.original_context is not None

    def channel(rotations: float) -> float:
        """The (fractional) channel that turns `rotations` times within the original context."""
        return dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))  # type: ignore[operator]

    low, high = channel(rope.beta_fast), channel(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, device=fast.device).to(fast.dtype) - low) / (high - low or 0.001)
    keep = 1 - ramp.clamp(0, 1)
    return fast / rope.factor * (1 - keep) + fast * keep


def _yarn_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _temperature(rope.factor, rope.mscale) / _temperature(rope.factor, rope.mscale_all_dim)
    return _temperature(rope.factor, 1.0)


def _temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
