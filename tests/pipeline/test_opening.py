"""A model folder opened for serving: the type of its weights, and matrices that stay packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.test_decode_gqa import drawn
from tiny import random_ids

from overland.chat import build_tokenizer
from overland.corpus.bpe import train_bpe
from overland.engine import Sampling
from overland.errors import UsageError
from overland.model import save_model
from overland.pipeline.opening import open_engine
from overland.transform import packed_bytes, quantize_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-shaped folder, and beside it the same with its Linears in MXFP4."""
    root = tmp_path_factory.mktemp("served")
    save_model(drawn("qwen3"), root / "plain")
    build_tokenizer(train_bpe(["some words"], 260)).save(root / "plain")
    quantize_folder(root / "plain", root / "packed", targets=("all-linear",))
    return root


def test_weights_have_the_type_that_was_asked_for(folder: Path) -> None:
    answers = []
    for name, dtype, packed in (
        ("plain", "float32", False),
        ("plain", "bfloat16", False),
        ("packed", "bfloat16", True),
    ):
        engine, _ = open_engine(folder / name, dtype=dtype, packed=packed)
        assert {p.dtype for p in engine.model.parameters()} == {getattr(torch, dtype)}
        assert bool(packed_bytes(engine.model)) == packed
        one = engine.submit(random_ids(1, 20, vocab=260)[0].tolist(), Sampling(temperature=0, max_tokens=8))
        engine.run([one])
        answers.append(one.ids)
    assert answers[0] == answers[1]
    assert len(answers[2]) == 8


def test_a_folder_without_packed_matrices_cannot_stay_packed(folder: Path) -> None:
    with pytest.raises(UsageError, match="holds nothing in MXFP4"):
        open_engine(folder / "plain", packed=True)
