"""The compiled MXFP4 form and the products with packed weights, bit for bit against the torch form and the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from kernels.test_mxfp4 import GOLDEN_FILE, RULES, bits, blocks, rules
from overland import kernels
from overland.errors import UsageError
from overland.kernels.mxfp4 import _native

needs_compiler = pytest.mark.skipif(not _native.runs(torch.zeros(1)), reason="no compiled kernels on this machine")
GOLDEN = load_file(GOLDEN_FILE)


def torch_form(x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    codes, scales = kernels.mxfp4_quantize(x, rule=rule)
    return kernels.mxfp4_pack(codes), scales


def same_bits(x: Tensor, y: Tensor) -> bool:
    kind = torch.int32 if x.dtype == torch.float32 else torch.int16
    return bool(((x.view(kind) == y.view(kind)) | (x.isnan() & y.isnan())).all())


@needs_compiler
@settings(deadline=None)
@given(x=blocks, rule=rules, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_block_encodes_to_the_bytes_of_the_torch_form(x: Tensor, rule: str, dtype: torch.dtype) -> None:
    x = x.to(dtype)
    x = torch.where(x.isfinite(), x, 0.0)  # bf16 rounds the largest floats to infinity; see below
    for mine, theirs in zip(kernels.mxfp4_encode(x, rule), torch_form(x, rule), strict=True):
        assert torch.equal(mine, theirs)


@needs_compiler
@pytest.mark.parametrize("rule", RULES)
def test_every_bf16_number_encodes_as_in_the_torch_form(rule: str) -> None:
    """All 65,536 of them, beside every kind of neighbour: NaN, infinities, subnormals, both zeros."""
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    shuffled = numbers[torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))]
    x = torch.cat([numbers, shuffled[shuffled.isfinite()][: 32 * 2000]]).view(-1, 32)
    for mine, theirs in zip(kernels.mxfp4_encode(x, rule), torch_form(x, rule), strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(kernels.mxfp4_encode(x.float(), rule), torch_form(x, rule), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("rule", RULES)
def test_bytes_equal_torchao(rule: str) -> None:
    packed, scales = kernels.mxfp4_encode(GOLDEN["weights"], rule)
    assert torch.equal(scales, GOLDEN[f"torchao.{rule}.scales"])
    assert torch.equal(packed, GOLDEN[f"torchao.{rule}.packed"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_byte_decodes_under_every_scale(dtype: torch.dtype) -> None:
    packed = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 16)
    wanted = kernels.mxfp4_dequantize_reference(kernels.mxfp4_unpack(packed), scales, dtype=torch.float32).to(dtype)
    assert same_bits(kernels.mxfp4_decode(packed, scales, dtype), wanted)


@needs_compiler
@settings(deadline=None, max_examples=50)
@given(x=blocks, rule=rules, inner=st.integers(1, 37), seed=st.integers(0, 99))
def test_rounding_along_any_dim_equals_the_torch_form(x: Tensor, rule: str, inner: int, seed: int) -> None:
    noise = torch.randn(2, 64, inner, generator=torch.Generator().manual_seed(seed))
    weight = noise * x.roll(seed)[:inner].abs().clamp(max=1e30) if inner <= 32 else noise
    wanted = kernels.mxfp4_dequantize(*kernels.mxfp4_quantize(weight, 1, rule), dim=1)
    assert torch.equal(bits(kernels.mxfp4_round(weight, 1, rule)), bits(wanted))


def test_rounding_keeps_nan_to_its_block() -> None:
    x = torch.ones(1, 64, 3)
    x[0, 5, 1] = float("nan")
    rounded = kernels.mxfp4_round(x, 1)
    assert rounded[0, :32, 1].isnan().all()
    assert rounded.isnan().sum() == 32


@settings(deadline=None, max_examples=50)
@given(x=blocks)
def test_the_search_finds_the_least_squared_error_over_all_scales(x: Tensor) -> None:
    codes, scales = kernels.mxfp4_quantize(x, rule="search")
    found = (kernels.mxfp4_dequantize(codes, scales).double() - x.double()).square().sum()
    table = torch.tensor(kernels.MXFP4_VALUES, dtype=torch.float64)
    every = torch.arange(0, 253, dtype=torch.float64)
    grids = table * torch.exp2(every - 127)[:, None]  # [scale, value]
    nearest = (x.double().abs()[:, None, None] - grids).abs().amin(-1)  # [element, scale]
    assert found <= nearest.square().sum(0).min() * (1 + 1e-12)


# ---------------------------------------------------------------- products


def packed_weights(E: int, N: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    w = torch.randn(E, N, K, generator=torch.Generator().manual_seed(seed)) * 0.05
    packed, scales = kernels.mxfp4_encode(w)
    return packed, scales, kernels.mxfp4_decode(packed, scales)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 13, 24, 25, 60])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float64, 1e-12)])
def test_product_equals_that_with_decoded_weights(rows: int, dtype: torch.dtype, bound: float) -> None:
    packed, scales, w = packed_weights(1, 40, 96)
    x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = kernels.mxfp4_product(x, packed[0], scales[0])
    wanted = x.double() @ w[0].double().T
    assert y.dtype == dtype
    assert (y.double() - wanted).abs().max() <= bound * wanted.abs().max()


def test_product_of_small_integers_is_exact() -> None:
    """Sums that fp32 holds exactly in any order: not a bit may differ."""
    gen = torch.Generator().manual_seed(2)
    w = torch.randint(-3, 4, (24, 256), generator=gen).float()
    packed, scales = kernels.mxfp4_encode(w)
    for rows in (1, 2, 4, 8, 40):
        x = torch.randint(-8, 9, (rows, 256), generator=gen).float()
        assert torch.equal(kernels.mxfp4_product(x, packed, scales), x @ kernels.mxfp4_decode(packed, scales).T)


@settings(deadline=None, max_examples=30)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_grouped_product_gives_each_expert_its_rows(counts: list[int], seed: int) -> None:
    packed, scales, _ = packed_weights(len(counts), 17, 64, seed)
    x = torch.randn(sum(counts), 64, generator=torch.Generator().manual_seed(seed))
    groups = torch.tensor(counts)
    y = kernels.mxfp4_grouped_product(x, packed, scales, groups)
    wanted = kernels.mxfp4_grouped_product_reference(x.double(), packed, scales, groups)
    assert y.shape == (sum(counts), 17)
    assert torch.allclose(y.double(), wanted, rtol=0, atol=1e-5)


def test_what_does_not_fit_together_is_named() -> None:
    packed, scales, _ = packed_weights(1, 8, 64)
    with pytest.raises(UsageError, match="x has K columns"):
        kernels.mxfp4_product(torch.zeros(1, 32), packed[0], scales[0])
    with pytest.raises(UsageError, match="do not belong together"):
        kernels.mxfp4_decode(packed[0], scales[0, :, :1])
    with pytest.raises(UsageError, match="valid: even, floor, ceil, search"):
        kernels.mxfp4_encode(torch.zeros(32), "odd")
