"""Quantising with a measure: the loss before and after is that of the two folders, on the text that was given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from studio.made_up import small_tokenizer

from overland.errors import UsageError
from overland.model import Decoder, load_model, preset, save_model
from overland.pipeline.quantized import quantize
from overland.train import evaluate_bpb


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, tokenizer = tmp_path_factory.mktemp("run") / "model", small_tokenizer()
    model, gen = Decoder(preset("nano", vocab_size=tokenizer.vocab_size)), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.randn(value.shape, generator=gen) * 0.1 + ("norm" in name))
    save_model(model, path)
    tokenizer.save(path)
    return path


def test_bits_a_byte_are_those_of_both_folders_on_the_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ein Satz über Häfen. " * 20)
    (tmp_path / "b.txt").write_text("Another file of words.\n" * 10)
    done = quantize(folder, tmp_path / "mxfp4", "even", ("experts",), tmp_path / "a.txt")
    tokenizer, raw = small_tokenizer(), (tmp_path / "a.txt").read_text()
    document = ([tokenizer.special("[EOS]"), *tokenizer.encode(raw)], len(raw.encode()))
    wanted = [evaluate_bpb(load_model(path).eval(), [document]) for path in (folder, tmp_path / "mxfp4")]
    assert done.before == wanted[0]
    assert done.after == pytest.approx(wanted[1], rel=1e-5)
    assert done.after != done.before
    shown = done.to_dict()["held_out"]
    assert shown["difference"] == done.after - done.before


def test_without_text_only_the_weights_are_measured(folder: Path, tmp_path: Path) -> None:
    done = quantize(folder, tmp_path / "mxfp4", "even", ("experts",))
    assert done.to_dict()["held_out"] is None
    assert done.report.relative_error > 0.05


def test_text_that_is_not_there_is_named_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no text"):
        quantize(folder, tmp_path / "mxfp4", "even", ("experts",), tmp_path / "nowhere")
    assert not (tmp_path / "mxfp4").exists()
