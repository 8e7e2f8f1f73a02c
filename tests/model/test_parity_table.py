"""The parity table of docs/model.md measures what it says, and bf16 is as near to fp64 as Transformers is."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from benchmarks.parity import COLUMNS, measure
from model.test_families import CASES


@pytest.mark.parametrize("case", ["llama", "qwen3 with a window", "gpt_oss"])
def test_a_row_of_the_table(case: str, tmp_path: Path) -> None:
    """Cases without a choice that rounding could turn (gpt-oss has few experts and none turns here)."""
    row = measure(case, tmp_path)
    assert row.keys() == set(COLUMNS)
    assert row["fp64 logits"] < 1e-12
    assert row["fp64 gradients"] < 1e-12
    assert row["fp32 logits"] < 1e-5
    assert row["fp32 gradient norms"] < 1e-4
    assert 0 < row["bf16 ours"] < 0.1
    assert row["bf16 ours"] < 2 * row["bf16 theirs"]
    assert case in CASES
