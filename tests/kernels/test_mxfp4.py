"""MXFP4 bit for bit against torchao 0.18 (EVEN, FLOOR, RCEIL), compressed-tensors 0.20 and transformers 5.24's gpt-oss.

Their answers are kept in data/mxfp4_peers.safetensors (written by mxfp4_peers.py); where a Python that has them is
found (OVERLAND_MXFP4_PEERS, else ~/.cache/overland/peers/mxfp4/bin/python) the file is checked too.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from overland.errors import UsageError
from overland.kernels import (
    MXFP4_RULES,
    MXFP4_VALUES,
    mxfp4_dequantize,
    mxfp4_dequantize_reference,
    mxfp4_pack,
    mxfp4_quantize,
    mxfp4_quantize_reference,
    mxfp4_round,
    mxfp4_unpack,
)

GOLDEN_FILE = Path(__file__).parent / "data" / "mxfp4_peers.safetensors"
GOLDEN = load_file(GOLDEN_FILE)
PEER_PYTHON = Path(
    os.environ.get("OVERLAND_MXFP4_PEERS", Path.home() / ".cache" / "overland" / "peers" / "mxfp4" / "bin" / "python")
)
RULES = sorted(MXFP4_RULES)


def bits(x: Tensor) -> Tensor:
    """fp32 as integers, so that equality sees the sign of zero."""
    return x.view(torch.int32)


def block(*values: float) -> Tensor:
    return torch.tensor([*values, *[0.0] * (32 - len(values))])


# ---------------------------------------------------------------- other people's answers


@pytest.mark.parametrize("rule", RULES)
def test_bytes_equal_torchao(rule: str) -> None:
    codes, scales = mxfp4_quantize(GOLDEN["weights"], rule=rule)
    assert torch.equal(scales, GOLDEN[f"torchao.{rule}.scales"])
    assert torch.equal(mxfp4_pack(codes), GOLDEN[f"torchao.{rule}.packed"])


def test_bytes_equal_compressed_tensors_up_to_the_sign_of_a_zero_weight() -> None:
    codes, scales = mxfp4_quantize(GOLDEN["weights"])
    theirs = mxfp4_unpack(GOLDEN["compressed_tensors.packed"])
    assert torch.equal(scales, GOLDEN["compressed_tensors.scales"])
    assert torch.equal(mxfp4_dequantize(codes, scales), mxfp4_dequantize(theirs, scales))
    assert (GOLDEN["weights"][codes != theirs] == 0).all()  # only where the weight itself is -0.0


def test_dequantised_values_equal_the_gpt_oss_loader() -> None:
    packed, scales = GOLDEN["torchao.even.packed"], GOLDEN["torchao.even.scales"]
    values = mxfp4_dequantize(mxfp4_unpack(packed), scales, dtype=torch.bfloat16)
    assert torch.equal(values.view(torch.int16), GOLDEN["transformers.values"].view(torch.int16))


def test_the_golden_weights_tell_the_rules_apart() -> None:
    scales = [GOLDEN[f"torchao.{rule}.scales"] for rule in RULES]
    for one in range(3):
        for other in range(one):
            assert not torch.equal(scales[one], scales[other])


@pytest.mark.skipif(
    not PEER_PYTHON.is_file(),
    reason=f"no Python with torchao, compressed-tensors and transformers at {PEER_PYTHON}; stored bytes are tested",
)
def test_the_stored_answers_are_what_the_peers_give(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.safetensors"
    driver = Path(__file__).with_name("mxfp4_peers.py")
    done = subprocess.run([PEER_PYTHON, driver, fresh], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = load_file(fresh)
    assert found.keys() == GOLDEN.keys()
    for name, value in found.items():
        assert torch.equal(value, GOLDEN[name]), name


# ---------------------------------------------------------------- the format itself


def test_worked_example() -> None:
    codes, scales = mxfp4_quantize(block(0.1, -0.2, 0.33, 0.75, -0.6, 0.05, -0.02, 0.41))
    assert scales.tolist() == [124]
    assert codes[:8].tolist() == [2, 11, 5, 7, 14, 1, 8, 5]
    assert mxfp4_pack(codes)[:5].tolist() == [0xB2, 0x75, 0x1E, 0x58, 0x00]
    assert mxfp4_dequantize(codes, scales)[:8].tolist() == [0.125, -0.1875, 0.375, 0.75, -0.5, 0.0625, 0.0, 0.375]


def test_ties_go_to_the_even_code() -> None:
    ties = block(6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    assert mxfp4_round(ties)[1:8].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert mxfp4_round(-ties)[1:8].tolist() == [0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0]


@pytest.mark.parametrize(
    "largest, even, floor, ceil", [(0.8, -3, -3, -2), (0.9, -2, -3, -2), (6.1, 0, 0, 1), (7.0, 1, 0, 1), (6.0, 0, 0, 0)]
)
def test_scale_rules(largest: float, even: int, floor: int, ceil: int) -> None:
    got = {rule: int(mxfp4_quantize(block(largest), rule=rule)[1]) - 127 for rule in RULES}
    assert got == {"even": even, "floor": floor, "ceil": ceil}


def test_floor_saturates_at_six_and_ceil_never_does() -> None:
    assert mxfp4_round(block(7.9), rule="floor")[0] == 6.0
    assert mxfp4_round(block(7.9), rule="ceil")[0] == 8.0


def test_every_code_and_every_scale_byte_has_its_value() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 2)
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(-1)
    values = mxfp4_dequantize(codes, scales)
    table = torch.tensor(MXFP4_VALUES + tuple(-v for v in MXFP4_VALUES), dtype=torch.float64).repeat(2)
    wanted = (table * torch.exp2(torch.arange(255, dtype=torch.float64) - 127).unsqueeze(-1)).float()
    assert torch.equal(bits(values[:255]), bits(wanted))
    assert values[255].isnan().all()
    assert torch.equal(bits(mxfp4_dequantize_reference(codes, scales)[:255]), bits(wanted))


@pytest.mark.parametrize("rule", RULES)
def test_blocks_run_along_the_chosen_dim(rule: str) -> None:
    x = torch.randn(3, 64, 5, generator=torch.Generator().manual_seed(0))
    codes, scales = mxfp4_quantize(x, dim=1, rule=rule)
    assert codes.shape == (3, 64, 5)
    assert scales.shape == (3, 2, 5)
    turned = mxfp4_round(x.mT.contiguous(), rule=rule).mT
    assert torch.equal(mxfp4_dequantize(codes, scales, dim=1), turned)
    assert torch.equal(mxfp4_round(x, 1, rule), turned)


def test_relative_error_of_normal_weights() -> None:
    x = 0.02 * torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))
    errors = {rule: float((mxfp4_round(x, rule=rule) - x).norm() / x.norm()) for rule in RULES}
    assert errors == pytest.approx({"even": 0.1122, "floor": 0.1140, "ceil": 0.1184}, abs=3e-4)


# ---------------------------------------------------------------- any block at all

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
near = st.floats(-8, 8, width=16)  # many exact ties once scaled
blocks = st.one_of(
    st.lists(near, min_size=32, max_size=32),
    st.lists(finite, min_size=32, max_size=32),
    st.builds(lambda xs, e: [x * 2.0**e for x in xs], st.lists(near, min_size=32, max_size=32), st.integers(-150, 120)),
).map(lambda xs: torch.tensor(xs, dtype=torch.float32))
rules = st.sampled_from(RULES)


@settings(deadline=None)
@given(x=blocks, rule=rules)
def test_fast_form_equals_the_reference(x: Tensor, rule: str) -> None:
    fast, slow = mxfp4_quantize(x, rule=rule), mxfp4_quantize_reference(x, rule=rule)
    assert torch.equal(fast[0], slow[0])
    assert torch.equal(fast[1], slow[1])
    assert torch.equal(bits(mxfp4_dequantize(*fast)), bits(mxfp4_dequantize_reference(*slow)))


@settings(deadline=None)
@given(x=blocks, rule=rules)
def test_quantising_again_changes_nothing(x: Tensor, rule: str) -> None:
    codes, scales = mxfp4_quantize(x, rule=rule)
    values = mxfp4_dequantize(codes, scales)
    again = mxfp4_quantize(values, rule=rule)
    assert torch.equal(bits(mxfp4_dequantize(*again)), bits(values))
    if rule != "ceil":  # there a largest code of 3 is 6 under half the scale: other bytes, the same values
        assert torch.equal(again[0], codes)
        assert torch.equal(again[1], scales)


@settings(deadline=None)
@given(x=blocks, rule=rules)
def test_error_is_at_most_half_a_step_of_the_block(x: Tensor, rule: str) -> None:
    codes, scales = mxfp4_quantize(x, rule=rule)
    scale = 2.0 ** (float(scales) - 127)
    error = (mxfp4_dequantize(codes, scales).double() - x.double()).abs()
    within = x.double().abs() <= 6 * scale
    assert (error[within] <= scale).all()  # the widest step, from 4 to 6, is two
    assert (codes[~within] & 7 == 7).all()  # what lies beyond takes the largest value


@settings(deadline=None)
@given(codes=st.lists(st.integers(0, 15), min_size=2, max_size=64).filter(lambda xs: len(xs) % 2 == 0))
def test_unpacking_undoes_packing(codes: list[int]) -> None:
    packed = mxfp4_pack(torch.tensor(codes, dtype=torch.uint8))
    assert packed.tolist() == [low + 16 * high for low, high in zip(codes[0::2], codes[1::2], strict=True)]
    assert mxfp4_unpack(packed).tolist() == codes


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_block_that_is_not_finite_becomes_nan_and_leaves_its_neighbours_alone(bad: float) -> None:
    x = torch.stack([block(1.0, bad, 2.0), block(1.0, 0.5, 2.0)])
    for quantize in (mxfp4_quantize, mxfp4_quantize_reference):
        codes, scales = quantize(x)
        assert scales.flatten().tolist() == [255, 126]
        values = mxfp4_dequantize(codes, scales)
        assert values[0].isnan().all()
        assert torch.equal(values[1], x[1])


def test_the_largest_floats_stay_finite() -> None:
    top = torch.finfo(torch.float32).max
    for rule in RULES:
        assert mxfp4_round(block(top, -top), rule=rule).isfinite().all()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="'evn' is unknown; valid: even, floor, ceil, search"):
        mxfp4_quantize(block(1.0), rule="evn")
    with pytest.raises(UsageError, match="is 33, not a multiple of 32"):
        mxfp4_quantize(torch.zeros(33, 2), dim=0)
    with pytest.raises(UsageError, match="2 scales for 32 codes"):
        mxfp4_dequantize(torch.zeros(32, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8))


def test_the_reference_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAND_KERNELS", "reference")
    reference = mxfp4_round(GOLDEN["weights"])
    monkeypatch.setenv("OVERLAND_KERNELS", "fast")
    assert torch.equal(reference.view(torch.int16), mxfp4_round(GOLDEN["weights"]).view(torch.int16))
