"""bf16 against fp64 with the same weights, family by family, within the tolerances that docs/model.md states.

A rounded router or indexer chooses otherwise for some tokens, and one such choice moves a logit by a good part of its
size. So logits are compared with fp64's choices replayed, and the share of tokens whose choices turn is held apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from benchmarks.parity import BF16_TOLERANCE, BF16_TURNED, K3_CASES, k3_rounding, rounding
from model.test_families import CASES, ids_of, reference, written
from model.widened import widened
from overland.model import load_model
from overland.model.families import FAMILIES


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "kimi_k3"])
def test_a_family_in_bf16(family: str, tmp_path: Path) -> None:
    with widened():
        source = written(reference(family, torch.float64), tmp_path)
    found = rounding(load_model(source, torch.float64), load_model(source, torch.bfloat16), ids_of(family))
    assert 0 < found["bf16 fixed"] < BF16_TOLERANCE[family]
    assert found["bf16 turned"] <= BF16_TURNED.get(family, 0.0)
    if not found["bf16 turned"]:
        assert found["bf16 ours"] == found["bf16 fixed"]
    assert CASES[family]["model_type"] == family


@pytest.mark.parametrize("case", K3_CASES)
def test_k3_in_bf16(case: str, tmp_path: Path) -> None:
    found = k3_rounding(case, tmp_path)
    assert 0 < found["bf16 fixed"] < BF16_TOLERANCE["kimi_k3"]
    assert 0 < found["bf16 turned"] <= BF16_TURNED["kimi_k3"]
